"""Who is told what happens while a network trains, and writes it down: terminal, JSON Lines, TensorBoard."""

import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tqdm import tqdm

from utils.file import atomic_file
from utils.training.plan import Progress, TrainingConfig


class StepReport(NamedTuple):
    """An update."""

    loss: float  # nats per target token, label smoothing included
    gradient_norm: float  # before clipping
    learning_rate: float
    target_tokens: int
    tokens_per_second: float  # target tokens, since the last report
    padding: float  # share of both sides' positions


class Sample(NamedTuple):
    """A sentence, its reference, and what the network makes of it."""

    source: str
    reference: str
    translation: str


class Validation(NamedTuple):
    """How good the network is on text that it does not learn from."""

    loss: float  # nats per target token, no label smoothing
    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    samples: list[Sample]

    @property
    def perplexity(self) -> float:
        """exp(loss): per token of this vocabulary, not per word."""
        return math.exp(min(self.loss, 700.0))


def duration(seconds: float) -> str:
    """Minutes, hours or days, whichever reads best."""
    if seconds < 90 * 60:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


class Observer(Protocol):
    """Is told of each update that is reported, and of each validation."""

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """After an update."""

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """After a validation."""

    def close(self) -> None:
        """At the end, also that of an interrupted training."""


class Terminal:
    """A progress bar on a terminal, a line now and then in a log; validations as a small block of text.

    Args:
        plan: bounds of the training.
        steps_per_epoch: updates in a pass over the training text.
    """

    REPORTS_PER_LINE = 5  # where there is no terminal
    REPORTS_TO_ESTIMATE = 2  # before the time to the end is foretold

    def __init__(self, plan: TrainingConfig, steps_per_epoch: int) -> None:
        self._plan = plan
        self._steps_per_epoch = steps_per_epoch
        self._live = sys.stderr.isatty()
        bounds = [plan.max_steps, plan.max_epochs and plan.max_epochs * steps_per_epoch]
        self._total = min((bound for bound in bounds if bound is not None), default=None)
        self._bar = tqdm(total=self._total, unit="step", disable=not self._live, dynamic_ncols=True)
        self._smoothed: float | None = None
        self._reports = 0

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Move the bar."""
        self._reports += 1
        self._smoothed = report.loss if self._smoothed is None else 0.95 * self._smoothed + 0.05 * report.loss
        epoch = progress.epoch + progress.position / self._steps_per_epoch
        facts = (
            f"epoch {epoch:.2f}  loss {self._smoothed:.3f}  {report.tokens_per_second:,.0f} tok/s  "
            f"padding {report.padding:.1%}  lr {report.learning_rate:.1e}"
        )
        if self._live:
            self._bar.n = progress.step
            self._bar.set_postfix_str(facts, refresh=False)
            self._bar.refresh()
        elif self._reports % self.REPORTS_PER_LINE == 0:
            of = f"/{self._total:,}" if self._total else ""
            left = self._remaining(progress)
            eta = "" if left is None else f"  ETA {duration(left)}"
            self.say(f"step {progress.step:,}{of}  {facts}  {duration(progress.seconds)}{eta}")

        if self._reports == self.REPORTS_TO_ESTIMATE and (seconds := self._remaining(progress)) is not None:
            self.say(f"At this speed the training takes about {duration(seconds)} more.")

    def _remaining(self, progress: Progress) -> float | None:
        """Estimated seconds to go, by the bound that will be met first."""
        bounds = []
        if self._total:
            bounds.append((self._total - progress.step) * progress.seconds / progress.step)
        if self._plan.max_minutes is not None:
            bounds.append(60 * self._plan.max_minutes - progress.seconds)
        return max(0.0, min(bounds)) if bounds else None

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Print the scores and what the translations look like."""
        best = "  (best so far)" if progress.best_step == progress.step else ""
        self.say(
            f"\n── step {progress.step:,}  {duration(progress.seconds)}  dev loss {validation.loss:.3f} nats/token  "
            f"PPL {validation.perplexity:.2f}  BLEU {validation.bleu:.2f}  chrF {validation.chrf:.2f}{best}\n"
            f"   {validation.bleu_signature}"
        )
        for sample in validation.samples:
            self.say(
                f"   source     {sample.source}\n   reference  {sample.reference}\n   ours       {sample.translation}"
            )
        self.say("")

    def say(self, text: str) -> None:
        """Print above the bar."""
        self._bar.write(text, file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        """Let the bar go."""
        self._bar.close()


def read_log(path: Path) -> list[tuple[str, dict[str, Any]]]:
    r"""Each line that a JsonlLog has written whole, and what it says.

    Only "\n" ends a line (sentences may hold U+2028); one that a crash has cut off ends with nothing.
    """
    with path.open(encoding="utf-8") as file:
        return [(line, json.loads(line)) for line in file if line.endswith("\n")]


class JsonlLog:
    """A line of JSON for every reported update and every validation; a resumed run goes on where it stood.

    Args:
        path: of the file.
        step: of the checkpoint that the run goes on from; later lines are of updates that were lost, and go.
    """

    def __init__(self, path: Path, step: int) -> None:
        kept = [line for line, record in read_log(path) if record["step"] <= step] if path.exists() else []
        with atomic_file(path) as draft:
            draft.write_text("".join(kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def _write(self, kind: str, progress: Progress, fields: dict[str, object]) -> None:
        head = {
            "kind": kind,
            "step": progress.step,
            "epoch": progress.epoch,
            "minutes": round(progress.seconds / 60, 3),
        }
        self._file.write(json.dumps(head | fields, ensure_ascii=False) + "\n")
        self._file.flush()

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Write the report."""
        self._write("train", progress, report._asdict())

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Write scores and samples."""
        fields = validation._asdict() | {
            "perplexity": validation.perplexity,
            "samples": [sample._asdict() for sample in validation.samples],
        }
        self._write("dev", progress, fields)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardLog:
    """Curves for `tensorboard --logdir pickles`.

    Args:
        folder: of the event files.
        step: of the checkpoint that the run goes on from.
    """

    def __init__(self, folder: Path, step: int) -> None:
        # slow to import, and who translates needs it not
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=step + 1)

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Add a point to each training curve."""
        for name, value in report._asdict().items():
            self._writer.add_scalar(f"train/{name}", value, progress.step)

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Add a point to each dev curve."""
        for name in ("loss", "perplexity", "bleu", "chrf"):
            self._writer.add_scalar(f"dev/{name}", getattr(validation, name), progress.step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is pending."""
        self._writer.close()
