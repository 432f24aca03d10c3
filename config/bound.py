"""Bounds are data: a field says which values it takes, and one check words every refusal."""

import dataclasses
import math
import operator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_WORDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "below"}


class Bound(NamedTuple):
    """The values that a number may have, and what the ends mean; the names are pydantic's."""

    ge: float | None = None
    le: float | None = None
    gt: float | None = None
    lt: float | None = None
    hint: str = ""

    def holds(self, value: float) -> bool:
        """Return whether a value is within; NaN is in no bound."""
        ends = ((getattr(operator, name), getattr(self, name)) for name in _WORDS)
        return all(end is None or holds(value, end) for holds, end in ends)

    def __str__(self) -> str:
        if self.ge is not None and self.le is not None:
            text = f"{self.ge:,} to {self.le:,}"
        else:
            ends = ((word, getattr(self, name)) for name, word in _WORDS.items())
            text = " and ".join(f"{word} {end:,}" for word, end in ends if end is not None and math.isfinite(end))
        return text + (f" ({self.hint})" if self.hint else "")


class BoundError(ValueError):
    """A value out of its field's bound; the message begins with the field's name."""

    def __init__(self, name: str, value: Any, bound: Bound, optional: bool) -> None:
        super().__init__(f"{name}={value}: give {bound}" + ", or null" * optional)
        self.name = name


def bounded(
    default: Any,
    *,
    ge: float | None = None,
    le: float | None = None,
    gt: float | None = None,
    lt: float | None = None,
    hint: str = "",
) -> Any:
    """Return a field of a `Config` that takes numbers within bounds; `hint` says what an end means."""
    return field(default=default, metadata={"bound": Bound(ge, le, gt, lt, hint)})


@dataclass(frozen=True)
class Config:
    """Settings that belong together. A class below it adds rules between fields in `check`."""

    def __post_init__(self) -> None:
        """Refuse values out of their bounds."""
        for setting in dataclasses.fields(self):
            value, bound = getattr(self, setting.name), setting.metadata.get("bound")
            if bound is not None and value is not None and not bound.holds(value):
                raise BoundError(setting.name, value, bound, "None" in str(setting.type))
        self.check()

    def check(self) -> None:
        """Refuse values that do not go together."""
