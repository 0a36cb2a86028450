"""The report: one self-contained page, and the summary that a build ends with."""
