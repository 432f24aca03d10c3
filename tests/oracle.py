"""Names that stand in tests/tiny.py."""

from tests.tiny import attention_state, block_state  # noqa: F401
