"""The candidate that agrees most with all others."""

from collections.abc import Sequence


def by_expected_chrf(candidates: Sequence[str]) -> list[int]:
    """Placeholder."""
    raise NotImplementedError
