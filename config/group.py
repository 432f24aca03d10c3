"""Bounds are data: a field says which values it takes, and one check words every refusal."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Bound(NamedTuple):
    """The values that a number may have, and what the ends mean."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    hint: str = ""

    def holds(self, value: float) -> bool:
        """Return whether a value is within; NaN is in no bound."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and value == value
        )

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            text = f"{self.least:,} to {self.most:,}"
        else:
            words = {"at least": self.least, "more than": self.above, "at most": self.most, "below": self.below}
            ends = {word: end for word, end in words.items() if end is not None and math.isfinite(end)}
            text = " and ".join(f"{word} {end:,}" for word, end in ends.items())
        return text + (f" ({self.hint})" if self.hint else "")


class BoundError(ValueError):
    """A value out of its field's bound; the message begins with the field's name."""

    def __init__(self, name: str, value: Any, bound: Bound, optional: bool) -> None:
        super().__init__(f"{name}={value}: give {bound}" + ", or null" * optional)
        self.name = name


def bounded(
    default: Any,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    hint: str = "",
) -> Any:
    """Return a field of a `Group` that takes numbers within bounds; `hint` says what an end means."""
    return field(default=default, metadata={"bound": Bound(least, most, above, below, hint)})


@dataclass(frozen=True)
class Group:
    """Settings that belong together. A class below it adds rules between fields in `check`."""

    def __post_init__(self) -> None:
        """Refuse values out of their bounds."""
        for each in dataclasses.fields(self):
            value, bound = getattr(self, each.name), each.metadata.get("bound")
            if bound is not None and value is not None and not bound.holds(value):
                raise BoundError(each.name, value, bound, "None" in str(each.type))
        self.check()

    def check(self) -> None:
        """Refuse values that do not go together."""
