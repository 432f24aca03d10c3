"""What a study searches: the values that each option of train.py may have."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from utils.experiment.train_options import as_text


def unknown_key(key: object, known: list[str]) -> str:
    """Return the error message for an unknown key."""
    near = get_close_matches(str(key), known, n=1, cutoff=0.5)
    return f"unknown key {key}: " + (f"did you mean {near[0]}?" if near else f"give {', '.join(known)}")


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; whole numbers if both ends are.

    Args:
        low: smallest value.
        high: largest value.
        log: draw uniformly on a logarithmic scale.
        step: distance between the values, from `low`; null: any value.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        """Refuse a range that nothing can be drawn from."""
        if not self.low < self.high:
            raise ValueError(f"low={self.low} is not below high={self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low={self.low} has no logarithm: give more than 0, or leave log out")
        if self.step is None:
            return
        if self.log:
            raise ValueError(f"step={self.step} and log do not go together: leave one of them out")
        if self.step <= 0:
            raise ValueError(f"step={self.step}: give more than 0")
        n_steps = (self.high - self.low) / self.step
        if not math.isclose(n_steps, round(n_steps), rel_tol=1e-6):
            raise ValueError(f"high={self.high} is not a whole number of steps={self.step} above low={self.low}")
        if self.is_whole and not isinstance(self.step, int):
            raise ValueError(f"step={self.step} of whole numbers: give a whole number, or low={float(self.low)}")

    @property
    def is_whole(self) -> bool:
        """Whether the values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def distribution(self) -> BaseDistribution:
        """The range as an Optuna distribution."""
        if self.is_whole:
            return IntDistribution(int(self.low), int(self.high), self.log, int(self.step or 1))
        return FloatDistribution(self.low, self.high, self.log, self.step)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values to check: a mistake shows at the ends first."""
        return self.low, self.high

    def value(self, drawn: Any) -> Any:
        """Return what Optuna has drawn as a setting."""
        return drawn


@dataclass(frozen=True)
class Choices:
    """Unordered values of any type that YAML has.

    Args:
        choices: the values.
    """

    choices: tuple[Any, ...]

    def __post_init__(self) -> None:
        """Refuse fewer than two values, and duplicates."""
        texts = [as_text(choice) for choice in self.choices]
        if len(texts) < 2:
            raise ValueError(f"choices={texts}: give at least two, or put the one under options")
        if twice := [text for text in texts if texts.count(text) > 1]:
            raise ValueError(f"choices has {twice[0]} twice: leave one of them out")

    @property
    def distribution(self) -> BaseDistribution:
        """The choice as an Optuna distribution over their texts: Optuna cannot store lists."""
        return CategoricalDistribution([as_text(choice) for choice in self.choices])

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values to check: all of them."""
        return self.choices

    def value(self, drawn: Any) -> Any:
        """Return what Optuna has drawn as a setting."""
        return next(choice for choice in self.choices if as_text(choice) == drawn)


Domain = Range | Choices


def read_domain(given: Any) -> Domain:
    """Read a domain such as `{low: 1e-4, high: 1e-2, log: true}` or `{choices: [relu, gelu]}`.

    Raises:
        ValueError: when it is something else.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{as_text(given)} is not a range: give {{low: ..., high: ...}} or {{choices: [...]}}")
    kind = Choices if "choices" in given else Range
    known = [field.name for field in fields(kind)]
    for key in given:
        if key not in known:
            raise ValueError(unknown_key(key, known))
    if kind is Choices:
        choices = given["choices"]
        if not isinstance(choices, list):
            raise ValueError(f"choices={as_text(choices)} is not a list: give [..., ...]")
        return Choices(tuple(choices))
    for key in ("low", "high"):
        if key not in given:
            raise ValueError(f"a range without {key}: give one")
    if not isinstance(log := given.get("log", False), bool):
        raise ValueError(f"log={as_text(log)}: give true or false")
    step = given.get("step")
    low, high = _number("low", given["low"]), _number("high", given["high"])
    return Range(low, high, log, None if step is None else _number("step", step))


def _number(name: str, value: Any) -> float:
    """Return a finite number; also from `1e-4`, which YAML 1.1 reads as a string."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise ValueError(f"{name}={as_text(value)} is not a number")
    return number


def drawn_values(space: Mapping[str, Domain], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a trial has drawn, in the order of the study file."""
    return {option: domain.value(params[option]) for option, domain in space.items() if option in params}


def each_end(space: Mapping[str, Domain]) -> Iterator[tuple[str, Any]]:
    """Yield each option with each end of its range."""
    for option, domain in space.items():
        for end in domain.ends:
            yield option, end
