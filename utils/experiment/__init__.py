"""Comparing many trainings, each a train.py in its own process, and keeping results."""
