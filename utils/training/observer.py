"""Who is told what happens while a network trains, and writes it down: terminal, JSON Lines, TensorBoard."""

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tqdm import tqdm

from utils.above_bars import print_above_bars
from utils.file import write_text
from utils.training.plan import PlanConfig, Progress

LOG = "log.jsonl"  # of a run folder


def perplexity(loss: float) -> float:
    """exp(loss), loss in nats per token; finite for the most hopeless network."""
    return math.exp(min(loss, 700.0))


class StepReport(NamedTuple):
    """The updates since the last report."""

    loss: float  # nats per target token, label smoothing included; NaN where none was finite
    gradient_norm: float  # of the last one, before clipping
    learning_rate: float
    target_tokens: int
    tokens_per_second: float  # target tokens, since the last report
    padding: float  # share of both sides' positions
    skipped: int  # updates left out so far, for a gradient that was not finite


class Sample(NamedTuple):
    """A sentence, its reference, and what the network makes of it."""

    source: str
    reference: str
    translation: str

    def lines(self) -> list[str]:
        """Three lines, one below the other."""
        return [f"source     {self.source}", f"reference  {self.reference}", f"ours       {self.translation}"]


# names in logs and settings, and what people call them
SCORES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "accuracy": "accuracy",
    "next_sentence": "next sentence",
    "word_ppl": "PPL by word",
}


class Validation(NamedTuple):
    """How good the network is on text that it does not learn from."""

    loss: float  # nats per predicted token, no label smoothing
    scores: Mapping[str, float] = {}  # by their names in SCORES; 0 to 100 but for perplexities
    signatures: Mapping[str, str] = {}  # how a score was counted
    samples: Sequence[Sample] = ()

    @property
    def perplexity(self) -> float:
        """Per token of this vocabulary, not per word."""
        return perplexity(self.loss)

    def score(self, name: str) -> float:
        """What says how good this is: the higher the better."""
        return -self.loss if name == "loss" else self.scores[name]

    def __str__(self) -> str:
        """Perplexity and scores in a line."""
        scores = (f"{SCORES.get(name, name)} {value:.2f}" for name, value in self.scores.items())
        return "  ".join([f"PPL {self.perplexity:.2f}", *scores])


def duration(seconds: float) -> str:
    """Seconds, minutes, hours or days, whichever reads best."""
    if seconds < 60:
        return f"{seconds:.0f} s"
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
        unit: what is predicted.
        skipped: updates that were left out before a resume, and told then.
    """

    REPORTS_PER_LINE = 5  # where there is no terminal
    REPORTS_TO_ESTIMATE = 2  # before the time to the end is estimated
    BAR = 8  # columns that the bar has at least

    def __init__(self, plan: PlanConfig, steps_per_epoch: int, unit: str = "tok", skipped: int = 0) -> None:
        self._plan = plan
        self._steps_per_epoch = steps_per_epoch
        self._unit = unit
        self._live = sys.stderr.isatty()
        bounds = [plan.max_steps, plan.max_epochs and plan.max_epochs * steps_per_epoch]
        self._total = min((bound for bound in bounds if bound is not None), default=None)
        bounded = self._total is not None or plan.max_minutes is not None
        # tqdm's own counts would take the updates before a resume for updates of this minute
        self._bar = tqdm(
            total=1.0 if bounded else None,
            disable=not self._live,
            dynamic_ncols=True,
            bar_format="{percentage:3.0f}%|{bar}| {desc}" if bounded else "step {desc}",
        )
        self._smoothed = math.nan
        self._skipped = skipped
        self._reports = 0

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Move the bar."""
        self._reports += 1
        if math.isfinite(report.loss):
            before = report.loss if math.isnan(self._smoothed) else self._smoothed
            self._smoothed = 0.95 * before + 0.05 * report.loss
        if report.skipped > self._skipped:
            self._skipped = report.skipped
            skipped = f"{report.skipped:,} update{'' if report.skipped == 1 else 's'} skipped so far"
            print_above_bars(f"step {progress.step:,}: {skipped}: gradient not finite")
        if self._live:
            self._bar.n = self._done(progress)
            self._bar.set_description_str(self._fitting(self._facts(progress, report)), refresh=False)
            self._bar.refresh()
        elif self._reports % self.REPORTS_PER_LINE == 0:
            print_above_bars("step " + "  ".join(self._facts(progress, report)))
        if self._reports == self.REPORTS_TO_ESTIMATE and (seconds := self._remaining(progress)) is not None:
            print_above_bars(f"At this speed the training takes about {duration(seconds)} more.")

    def _facts(self, progress: Progress, report: StepReport) -> Iterator[str]:
        """What there is to say, the most important first."""
        yield f"{progress.step:,}/{self._total:,}" if self._total else f"{progress.step:,}"
        yield f"loss {self._smoothed:.3f}"
        left = self._remaining(progress)
        if left is not None:
            yield f"{duration(left)} to go"
        yield f"{report.tokens_per_second:,.0f} {self._unit}/s"
        yield f"lr {report.learning_rate:.1e}"
        yield f"epoch {progress.epoch + progress.position / self._steps_per_epoch:.2f}"
        yield f"padding {report.padding:.1%}"
        yield f"gradient {report.gradient_norm:.2f}"
        yield f"{duration(progress.seconds)} so far"

    def _fitting(self, facts: Iterator[str]) -> str:
        """The first ones, as many as stand in a line beside the bar."""
        room, text = terminal_columns() - len("100%|| ") - self.BAR, ""
        for fact in facts:
            if len(text) + len(fact) + 2 > room:
                break
            text += f"  {fact}" if text else fact
        return text

    def _done(self, progress: Progress) -> float:
        """Share of the training that is behind, by the bound that will be met first."""
        steps = progress.step / self._total if self._total else 0.0
        minutes = progress.seconds / 60 / self._plan.max_minutes if self._plan.max_minutes else 0.0
        return min(1.0, max(steps, minutes))

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
        best = "  (best)" if progress.best_step == progress.step else ""
        when = f"step {progress.step:,}  {duration(progress.seconds)}"
        print_above_bars(f"\n── {when}  dev loss {validation.loss:.3f}  {validation}{best}")
        if "bleu" in validation.signatures:
            print_above_bars(f"   {validation.signatures['bleu']}")
        for sample in validation.samples:
            print_above_bars("".join(f"\n   {line}" for line in sample.lines())[1:])
        print_above_bars("")

    def close(self) -> None:
        """Let the bar go."""
        self._bar.close()


def terminal_columns() -> int:
    """Width of the terminal behind standard error; 80 where it does not tell."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def read_log(path: Path) -> list[tuple[str, dict[str, Any]]]:
    r"""Each line that a JsonlLog has written whole, and what it says.

    Only "\n" ends a line (sentences may hold U+2028). One that a crash has cut off, or that the disk has damaged, is
    left out: a log is there to be looked at, and the others still say what they said.
    """
    found = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            text = line.decode()
            record = json.loads(text)
            step, _ = record["step"], record["kind"]
        except (ValueError, TypeError, LookupError):
            continue
        if type(step) is int:
            found.append((text + "\n", record))
    return found


def _finite(fields: Mapping[str, object]) -> dict[str, object]:
    """The same with None, null in JSON, for the numbers that JSON has no word for."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in fields.items()
    }


class JsonlLog:
    """A line of JSON for every reported update and every validation; a resumed run goes on where it stood.

    Args:
        path: of the file.
        step: of the checkpoint that the run goes on from; later lines are of updates that were lost, and go.
    """

    def __init__(self, path: Path, step: int) -> None:
        kept = [line for line, record in read_log(path) if record["step"] <= step] if path.exists() else []
        write_text(path, "".join(kept))
        self._file = path.open("a", encoding="utf-8")

    def _write(self, kind: str, progress: Progress, fields: Mapping[str, object]) -> None:
        head = {
            "kind": kind,
            "step": progress.step,
            "epoch": progress.epoch,
            "minutes": round(progress.seconds / 60, 3),
        }
        self._file.write(json.dumps(head | _finite(fields), ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Write the report."""
        self._write("train", progress, report._asdict())

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Write scores and samples."""
        signatures = {f"{name}_signature": signature for name, signature in validation.signatures.items()}
        fields = {"loss": validation.loss, **validation.scores, **signatures, "perplexity": validation.perplexity}
        self._write("dev", progress, fields | {"samples": [sample._asdict() for sample in validation.samples]})

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardLog:
    """Curves and texts for `tensorboard --logdir pickles`.

    Args:
        folder: of the event files.
        step: of the checkpoint that the run goes on from.
        settings: the run's, as text.
    """

    def __init__(self, folder: Path, step: int, settings: str = "") -> None:
        # slow to import, and who translates needs it not
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=step + 1)
        self._text("settings", settings.splitlines(), step)

    def _text(self, name: str, lines: Sequence[str], step: int) -> None:
        """As it stands: to Markdown, four spaces make a line code."""
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
        """Write what is pending."""
        self._writer.close()
