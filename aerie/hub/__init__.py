"""Datasets from the Hugging Face Hub: resolved once to a commit, and only what is read of them."""
