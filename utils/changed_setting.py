"""Which settings differ between two trees of settings, in types that JSON has."""

import json
from collections.abc import Mapping
from typing import Any, Final

ABSENT: Final = object()  # stands for a value that one side does not have


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return both values of each changed setting by its dotted name, those only in `new` last; 1 and 1.0 differ."""
    before, after = flat(old), flat(new)
    pairs = {name: (before.get(name, ABSENT), after.get(name, ABSENT)) for name in before | after}
    return {name: (was, now) for name, (was, now) in pairs.items() if _differ(was, now)}


def _differ(one: Any, other: Any) -> bool:
    return one is ABSENT or other is ABSENT or json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True)


def flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested settings on one level, by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {above + key: value}
    return found
