"""The scout: what the Hub holds for each category of prompts, ranked, with reasons."""
