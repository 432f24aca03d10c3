"""Whole networks, each with its own frozen config, made of `layers`."""
