from dataclasses import replace

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


@pytest.mark.parametrize("name", ["validate_every", "report_every"])
def test_a_period_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0: give at least 1 update"):
        replace(TrainingConfig(), **{name: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value", "remedy"), [("bleu_sentences", 0, "1, or null"), ("n_samples", -1, "0 or")])
def test_fewer_translations_than_none_are_refused(name: str, value: int, remedy: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}={value}: give (at least )?{remedy}"):
        replace(TrainingConfig(), **{name: value})  # type: ignore[arg-type]


def test_weights_are_chosen_by_the_loss_or_by_what_is_scored() -> None:
    for known in ((), ("accuracy",), ("bleu", "chrf")):
        TrainingConfig(select_by="loss").require_score(*known)
    TrainingConfig(select_by="chrf").require_score("bleu", "chrf")
    with pytest.raises(ValueError, match=r"^select_by=accuracy is not scored here: give bleu, chrf, loss$"):
        TrainingConfig(select_by="accuracy").require_score("bleu", "chrf")
