"""The version of Miyako."""

VERSION = "0.1.0"  # must match pyproject.toml
