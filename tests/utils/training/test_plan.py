import math
from typing import Any

import pytest

from utils.training.plan import TranslationTrainingConfig


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
    assert getattr(TranslationTrainingConfig(**given), name) == least
    given[name] -= 1
    with pytest.raises(ValueError, match=f"^{name}={least - 1}: give {remedy}"):
        TranslationTrainingConfig(**given)


@pytest.mark.parametrize("name", ["max_steps", "max_epochs", "max_minutes"])
@pytest.mark.parametrize("bound", [-1, 0, math.nan])
def test_a_bound_that_ends_nothing_or_everything_is_refused(name: str, bound: float) -> None:
    given: dict[str, Any] = {name: bound}
    with pytest.raises(ValueError, match=f"^{name}={bound}: give more than 0, or null for no limit"):
        TranslationTrainingConfig(**given)


def test_weights_are_chosen_by_the_loss_or_by_what_is_scored() -> None:
    for known in ((), ("accuracy",), ("bleu", "chrf")):
        TranslationTrainingConfig(select_by="loss").require_score(*known)
    TranslationTrainingConfig(select_by="chrf").require_score("bleu", "chrf")
    with pytest.raises(ValueError, match=r"^select_by=accuracy is not scored by this task: give bleu, chrf, loss$"):
        TranslationTrainingConfig(select_by="accuracy").require_score("bleu", "chrf")
