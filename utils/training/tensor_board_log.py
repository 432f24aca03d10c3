"""Training curves for TensorBoard."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from utils.training.observer import Observer, StepReport
from utils.training.progress import Progress
from utils.training.validation import Validation, perplexity


class TensorBoardLog(Observer):
    """Curves and texts for `tensorboard --logdir pickles`.

    Args:
        folder: where the event files go.
        step: of the checkpoint that the run resumes from.
        settings: the run's settings, as text.
    """

    def __init__(self, folder: Path, step: int, settings: str = "") -> None:
        # slow to import, and not needed for translating
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=step + 1)
        self._text("settings", settings.splitlines(), step)

    def _text(self, name: str, lines: Sequence[str], step: int) -> None:
        """Write lines verbatim: in Markdown, four spaces make a line code."""
        self._writer.add_text(name, "".join(f"    {line}\n" for line in lines), step)

    def _points(self, group: str, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            if math.isfinite(value):
                self._writer.add_scalar(f"{group}/{name}", value, step)

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Add a point to each training curve."""
        self._points("train", report._asdict() | {"perplexity": perplexity(report.loss)}, progress.step)

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Add a point to each dev curve, and the translations."""
        values = {"loss": validation.loss, "perplexity": validation.perplexity, **validation.scores}
        self._points("dev", values, progress.step)
        lines = [line for sample in validation.samples for line in (*sample.lines(), "")]
        self._text("dev/samples", lines, progress.step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is pending and close the file."""
        self._writer.close()
