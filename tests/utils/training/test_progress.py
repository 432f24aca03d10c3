import pytest

from utils.training.plan import Progress, TranslationTrainingConfig

ENDLESS = TranslationTrainingConfig(max_epochs=None)


@pytest.mark.parametrize(
    ("plan", "before", "at"),
    [
        (TranslationTrainingConfig(max_epochs=None, max_steps=7), Progress(step=6), Progress(step=7)),
        (TranslationTrainingConfig(max_epochs=3), Progress(epoch=2, position=900), Progress(epoch=3)),
        (TranslationTrainingConfig(max_epochs=None, max_minutes=0.5), Progress(seconds=29.9), Progress(seconds=30.0)),
        (TranslationTrainingConfig(max_epochs=3, max_steps=7), Progress(epoch=2, step=6), Progress(epoch=1, step=7)),
        (
            TranslationTrainingConfig(max_epochs=3, max_minutes=1),
            Progress(epoch=2, seconds=59),
            Progress(epoch=3, seconds=1),
        ),
    ],
    ids=["steps", "epochs", "minutes", "steps first", "epochs first"],
)
def test_the_first_bound_ends_it(plan: TranslationTrainingConfig, before: Progress, at: Progress) -> None:
    assert not before.ended(plan)
    assert at.ended(plan)


def test_no_bound_never_ends() -> None:
    assert not Progress(step=10**9, epoch=10**6, seconds=1e9).ended(ENDLESS)
