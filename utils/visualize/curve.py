"""Loss and BLEU over the updates of a run, from its log."""

from pathlib import Path

import matplotlib.pyplot as plt

from utils.file import atomic_file
from utils.training.observer import StepReport, Validation, read_log
from utils.training.plan import Progress


def draw_curve(log: Path, picture: Path) -> None:
    """Draw the log of a run as a PNG: loss on the left, BLEU and chrF on the right."""
    records = [record for _, record in read_log(log)]
    train = [record for record in records if record["kind"] == "train"]
    dev = [record for record in records if record["kind"] == "dev"]
    figure, (loss, quality) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    loss.plot([r["step"] for r in train], [r["loss"] for r in train], label="train (smoothed labels)", lw=0.8)
    loss.plot([r["step"] for r in dev], [r["loss"] for r in dev], "o-", ms=3, label="dev")
    loss.set(xlabel="updates", ylabel="nats per target token", title="Loss")
    for name, label in (("bleu", "BLEU"), ("chrf", "chrF2")):
        quality.plot([r["step"] for r in dev], [r[name] for r in dev], "o-", ms=3, label=label)
    quality.set(xlabel="updates", ylabel="score of decoded dev text", title="Translation quality", ylim=(0, None))
    for axes in (loss, quality):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    with atomic_file(picture) as draft:
        figure.savefig(draft, format="png", dpi=120)
    plt.close(figure)


class CurvePicture:
    """Draws the curve anew at each validation.

    Args:
        log: the run's JSON Lines; must be told of a validation before this.
        picture: where to draw.
    """

    def __init__(self, log: Path, picture: Path) -> None:
        self._log = log
        self._picture = picture

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Nothing: drawing takes a second."""

    def on_validation(self, progress: Progress, validation: Validation) -> None:  # noqa: ARG002
        """Draw."""
        draw_curve(self._log, self._picture)

    def close(self) -> None:
        """Nothing is open."""
