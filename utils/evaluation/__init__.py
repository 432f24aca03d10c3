"""Scores of translations, with their signatures, and of other networks."""
