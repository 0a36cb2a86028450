"""Whether this machine can do what a configuration asks, before anything is paid for."""
