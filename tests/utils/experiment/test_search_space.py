"""Each range and choice is drawn as it was meant, and what cannot be meant is refused in a line."""

from typing import Any

import optuna
import pytest
import yaml

from utils.experiment.study import Choices, Domain, Range, drawn_values, each_end, read_domain


def drawn(domain: Domain, n: int = 60) -> list[Any]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(1))
    return [domain.value(study.ask({"x": domain.distribution}).params["x"]) for _ in range(n)]


def read(text: str) -> Domain:
    return read_domain(yaml.safe_load(text))


def test_whole_ends_give_whole_numbers() -> None:
    assert set(drawn(read("{low: 2, high: 5}"))) == {2, 3, 4, 5}
    assert set(drawn(read("{low: 2, high: 6, step: 2}"))) == {2, 4, 6}
    assert any(value % 1 for value in drawn(read("{low: 2.0, high: 5}")))


def test_a_step_begins_at_the_low_end() -> None:
    found = {round(value, 9) for value in drawn(read("{low: 0.1, high: 0.4, step: 0.1}"))}
    assert found == {0.1, 0.2, 0.3, 0.4}


def test_logarithms_are_drawn_evenly() -> None:
    """1e-4 is a word to YAML 1.1, and a number to us."""
    found = drawn(read("{low: 1e-4, high: 1e-2, log: true}"), 200)
    assert 1e-4 <= min(found) < max(found) <= 1e-2
    assert 70 < sum(value < 1e-3 for value in found) < 130
    assert sum(value < 1e-3 for value in drawn(read("{low: 1e-4, high: 1e-2}"), 200)) < 40


def test_choices_keep_their_types() -> None:
    values = [True, None, "relu", 3, 0.5, [1, 2]]
    domain = read_domain({"choices": values})
    found = drawn(domain)
    assert all(value in found for value in values)
    assert {type(value) for value in found} == {type(value) for value in values}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.1", "0.1 is not a range"),
        ("{lo: 1, high: 2}", "unknown key lo: did you mean low"),
        ("{choices: [1, 2], log: true}", "unknown key log: give choices"),
        ("{low: 1}", "a range without high"),
        ("{high: 1}", "a range without low"),
        ("{low: a, high: 2}", "low=a is not a number"),
        ("{low: 1, high: true}", "high=true is not a number"),
        ("{low: 1, high: .inf}", "high=Infinity is not a number"),
        ("{low: 2, high: 1}", "low=2 is not below high=1"),
        ("{low: 1, high: 1}", "low=1 is not below high=1"),
        ("{low: 0, high: 1.0, log: true}", "low=0 has no logarithm"),
        ("{low: 1, high: 2, log: 3}", "log=3: give true or false"),
        ("{low: 1, high: 9, log: true, step: 2}", "step=2 and log do not go together"),
        ("{low: 0.0, high: 1.0, step: 0.3}", "high=1.0 is not a whole number of steps=0.3"),
        ("{low: 0, high: 1, step: 0}", "step=0: give more than 0"),
        ("{low: 0, high: 1, step: 0.5}", "step=0.5 of whole numbers"),
        ("{choices: relu}", "choices=relu is not a list"),
        ("{choices: [relu]}", "give at least two"),
        ("{choices: [1, 2, '1']}", "choices has 1 twice"),
    ],
)
def test_what_cannot_be_drawn_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(text)


def test_each_end_is_looked_at() -> None:
    space: dict[str, Domain] = {"a": Range(1, 3), "b": Choices(("x", None, 2))}
    assert list(each_end(space)) == [("a", 1), ("a", 3), ("b", "x"), ("b", None), ("b", 2)]
    assert drawn_values(space, {"b": "null", "a": 2, "gone": 1}) == {"a": 2, "b": None}
