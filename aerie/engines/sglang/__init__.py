"""The production engine: SGLang servers for generation, capture and serving a draft."""
