"""The plan: what a build will need and whether it can work, before a GPU is rented."""
