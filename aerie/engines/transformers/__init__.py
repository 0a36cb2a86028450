"""The embedded engine: transformers on the processor of this machine."""
