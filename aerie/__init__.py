"""Aerie raises EAGLE-3 drafts: a target model and a mix of datasets in, a proven draft out."""

__version__ = "0.1.0"
