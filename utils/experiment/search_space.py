"""What a study searches: for each option of train.py the values that it may have."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from utils.experiment.train_options import as_text


def unknown_key(key: object, known: list[str]) -> str:
    """What to say of a key that nobody knows."""
    near = get_close_matches(str(key), known, n=1, cutoff=0.5)
    return f"unknown key {key}: " + (f"did you mean {near[0]}?" if near else f"give {', '.join(known)}")


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both among them; whole ones where both ends are.

    Args:
        low: the least.
        high: the largest.
        log: draw their logarithms evenly.
        step: only every so many from `low`; null: all.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        """Refuse what nothing can be drawn from."""
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
            raise ValueError(f"step={self.step} of whole numbers: give a whole one, or low={float(self.low)}")

    @property
    def is_whole(self) -> bool:
        """Whether all numbers are."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def distribution(self) -> BaseDistribution:
        """The same in Optuna's words."""
        if self.is_whole:
            return IntDistribution(int(self.low), int(self.high), self.log, int(self.step or 1))
        return FloatDistribution(self.low, self.high, self.log, self.step)

    @property
    def ends(self) -> tuple[Any, ...]:
        """Where a mistake shows first."""
        return self.low, self.high

    def value(self, drawn: Any) -> Any:
        """What Optuna has drawn, as a setting."""
        return drawn


@dataclass(frozen=True)
class Choices:
    """Values of any type that YAML has, of which none is near another.

    Args:
        choices: the values.
    """

    choices: tuple[Any, ...]

    def __post_init__(self) -> None:
        """Refuse what is no choice."""
        texts = [as_text(choice) for choice in self.choices]
        if len(texts) < 2:
            raise ValueError(f"choices={texts}: give at least two, or one under options")
        if twice := [text for text in texts if texts.count(text) > 1]:
            raise ValueError(f"choices name {twice[0]} twice")

    @property
    def distribution(self) -> BaseDistribution:
        """Of their texts: Optuna writes down no lists."""
        return CategoricalDistribution([as_text(choice) for choice in self.choices])

    @property
    def ends(self) -> tuple[Any, ...]:
        """All of them."""
        return self.choices

    def value(self, drawn: Any) -> Any:
        """What Optuna has drawn, as a setting."""
        return next(choice for choice in self.choices if as_text(choice) == drawn)


Domain = Range | Choices


def read_domain(given: Any) -> Domain:
    """What `{low: 1e-4, high: 1e-2, log: true}` or `{choices: [relu, gelu]}` means.

    Raises:
        ValueError: something else.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{as_text(given)} is no range: give {{low: ..., high: ...}} or {{choices: [...]}}")
    kind = Choices if "choices" in given else Range
    known = [field.name for field in fields(kind)]
    for key in given:
        if key not in known:
            raise ValueError(unknown_key(key, known))
    if kind is Choices:
        choices = given["choices"]
        if not isinstance(choices, list):
            raise ValueError(f"choices={as_text(choices)} is no list: give [..., ...]")
        return Choices(tuple(choices))
    for key in ("low", "high"):
        if key not in given:
            raise ValueError(f"a range without {key}: give it")
    if not isinstance(log := given.get("log", False), bool):
        raise ValueError(f"log={as_text(log)}: give true or false")
    step = given.get("step")
    low, high = _number("low", given["low"]), _number("high", given["high"])
    return Range(low, high, log, None if step is None else _number("step", step))


def _number(name: str, value: Any) -> float:
    """Also `1e-4`, which YAML 1.1 takes for a word."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise ValueError(f"{name}={as_text(value)} is no number")
    return number


def drawn_values(space: Mapping[str, Domain], params: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a trial has drawn, in the order of the study file."""
    return {option: domain.value(params[option]) for option, domain in space.items() if option in params}


def each_end(space: Mapping[str, Domain]) -> Iterator[tuple[str, Any]]:
    """Options with each end of their ranges."""
    for option, domain in space.items():
        for end in domain.ends:
            yield option, end
