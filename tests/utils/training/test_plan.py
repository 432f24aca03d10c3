import math
from typing import Any

import pytest

from utils.training.plan import Progress, TrainingConfig

ENDLESS = TrainingConfig(max_epochs=None)


@pytest.mark.parametrize(
    ("plan", "before", "at"),
    [
        (TrainingConfig(max_epochs=None, max_steps=7), Progress(step=6), Progress(step=7)),
        (TrainingConfig(max_epochs=3), Progress(epoch=2, position=900), Progress(epoch=3)),
        (TrainingConfig(max_epochs=None, max_minutes=0.5), Progress(seconds=29.9), Progress(seconds=30.0)),
        (TrainingConfig(max_epochs=3, max_steps=7), Progress(epoch=2, step=6), Progress(epoch=1, step=7)),
        (TrainingConfig(max_epochs=3, max_minutes=1), Progress(epoch=2, seconds=59), Progress(epoch=3, seconds=1)),
    ],
    ids=["steps", "epochs", "minutes", "steps first", "epochs first"],
)
def test_the_first_bound_ends_it(plan: TrainingConfig, before: Progress, at: Progress) -> None:
    assert not before.ended(plan)
    assert at.ended(plan)


def test_no_bound_never_ends() -> None:
    assert not Progress(step=10**9, epoch=10**6, seconds=1e9).ended(ENDLESS)


def test_a_bound_of_nothing_ends_before_the_first_step() -> None:
    assert Progress().ended(TrainingConfig(max_steps=0))


@pytest.mark.parametrize(
    ("name", "least", "remedy"),
    [
        ("validate_every", 1, "at least 1 update"),
        ("report_every", 1, "at least 1 update"),
        ("patience", 1, "at least 1 validation, or null"),
        ("max_skipped", 1, "at least 1 update"),
        ("seed", 0, "0 or more"),
        ("bleu_sentences", 1, "at least 1, or null"),
        ("n_samples", 0, "0 or more"),
    ],
)
def test_what_no_training_can_follow_is_refused(name: str, least: int, remedy: str) -> None:
    given: dict[str, Any] = {name: least}
    assert getattr(TrainingConfig(**given), name) == least
    given[name] -= 1
    with pytest.raises(ValueError, match=f"^{name}={least - 1}: give {remedy}"):
        TrainingConfig(**given)


@pytest.mark.parametrize("name", ["max_steps", "max_epochs", "max_minutes"])
@pytest.mark.parametrize("bound", [-1, math.nan])
def test_a_bound_that_ends_nothing_or_everything_is_refused(name: str, bound: float) -> None:
    given: dict[str, Any] = {name: bound}
    with pytest.raises(ValueError, match=f"^{name}={bound}: give 0 or more, or null for no such bound"):
        TrainingConfig(**given)


def test_weights_are_chosen_by_the_loss_or_by_what_is_scored() -> None:
    for known in ((), ("accuracy",), ("bleu", "chrf")):
        TrainingConfig(select_by="loss").require_score(*known)
    TrainingConfig(select_by="chrf").require_score("bleu", "chrf")
    with pytest.raises(ValueError, match=r"^select_by=accuracy is not scored here: give bleu, chrf, loss$"):
        TrainingConfig(select_by="accuracy").require_score("bleu", "chrf")
