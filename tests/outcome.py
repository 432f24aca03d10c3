"""Names that stand in tests/tiny.py."""

from tests.tiny import Outcome, outcome  # noqa: F401
