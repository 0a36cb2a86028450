"""The prompts phase: downloaded rows become candidates, candidates become stable parts."""
