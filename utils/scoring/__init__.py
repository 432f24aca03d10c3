"""The verbs of evaluate.py, one or two per module."""
