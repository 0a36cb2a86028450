"""Capture of hidden states: the terabytes between the target and the draft."""
