"""Names that stand in tests/tiny.py."""

from tests.tiny import no_warning  # noqa: F401
