"""Settings that earlier versions saved with every run, and that are gone: what was saved is read without them."""

from collections.abc import Mapping
from typing import Any

_REMOVED = {"search": {"coverage_penalty"}}  # group -> names


def without_removed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without those that were removed, whatever their values."""
    return {
        group: {name: value for name, value in below.items() if name not in _REMOVED[group]}
        if group in _REMOVED and isinstance(below, Mapping)
        else below
        for group, below in settings.items()
    }
