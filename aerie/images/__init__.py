"""Images: what they are made of, how they are built, and what the registry says of their bases."""
