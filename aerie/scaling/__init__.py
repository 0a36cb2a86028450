"""Whether more data would help: the same recipe on nested fractions of the data."""
