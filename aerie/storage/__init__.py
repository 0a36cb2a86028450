"""What lies in a work folder: how much, what is still to come, and what nothing needs."""
