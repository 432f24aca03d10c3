"""Scores of translated text, with their signatures."""
