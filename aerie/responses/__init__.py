"""Responses: the target answers the prompts of a part, and answers unfit for training go aside."""
