"""What a training reports: to the terminal, to a log in JSON Lines, to TensorBoard."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from config.training import TrainingConfig
from utils.command import duration, first_line, print_above_bars
from utils.dataset.batch import AnyBatch, filling
from utils.file import write_text
from utils.training.loss import Loss
from utils.training.optimizer import Optimizer
from utils.training.schedule import Progress, Rank, total_steps

ItemT = TypeVar("ItemT")

# names in logs and settings, and names to show
SCORES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "accuracy": "accuracy",
    "next_sentence": "next sentence",
    "word_ppl": "PPL by word",
}


def perplexity(loss: float) -> float:
    """exp(loss), with the loss in nats per token; finite however bad the network is."""
    return math.exp(min(loss, 700.0))


class Sample(NamedTuple):
    """A sentence, its reference, and the network's translation."""

    source: str
    reference: str
    translation: str

    def lines(self) -> list[str]:
        """Return the three as labelled lines."""
        return [f"source     {self.source}", f"reference  {self.reference}", f"ours       {self.translation}"]


def spread(items: Sequence[ItemT], n: int) -> Sequence[ItemT]:
    """Return n of the items, at equal distances and from the first on; all if there are no more."""
    return items[:: max(1, len(items) // max(1, n))][:n]


class Validation(NamedTuple):
    """How good the network is on text that it is not trained on."""

    loss: float  # nats per predicted token, no label smoothing
    scores: Mapping[str, float] = {}  # by their names in SCORES; 0 to 100 except for perplexities
    signatures: Mapping[str, str] = {}  # how a score was computed
    samples: Sequence[Sample] = ()
    translations: Sequence[str] = ()  # of all sentences, if it is a translator
    train_loss: float = math.nan  # as `loss`, but of the training tokens since the last validation, with dropout

    @property
    def perplexity(self) -> float:
        """Per token of this vocabulary, not per word."""
        return perplexity(self.loss)

    def perplexities(self) -> dict[str, float]:
        """Return both, to be compared, by their names in logs."""
        return {"perplexity": self.perplexity, "train_perplexity": perplexity(self.train_loss)}

    def record(self) -> dict[str, object]:
        """Return scores, signatures and samples by their names in files."""
        signatures = {f"{name}_signature": signature for name, signature in self.signatures.items()}
        return {**self.scores, **signatures, "samples": [sample._asdict() for sample in self.samples]}

    def rank(self, name: str) -> Rank:
        """Return what says whether this is better than another validation, by a score of this name, or the loss."""
        return Rank(-self.loss if name == "loss" else self.scores[name], -self.loss)

    def __str__(self) -> str:
        """Return perplexity and scores on one line."""
        scores = (f"{SCORES.get(name, name)} {value:.2f}" for name, value in self.scores.items())
        return "  ".join([f"PPL {self.perplexity:.2f}", *scores])


Validate = Callable[[float], Validation]  # gives the scores of the network as it is now, told its loss


class StepReport(NamedTuple):
    """Figures of the updates since the last report."""

    loss: float  # nats per target token, as minimised; NaN if no update was finite
    nll: float  # nats per target token, without label smoothing and the like: compares with the loss of dev text
    gradient_norm: float  # of the last update, before clipping
    learning_rate: float
    target_tokens: int
    tokens_per_second: float  # target tokens, since the last report
    padding: float  # share of the positions, source and target together
    skipped: int  # updates so far whose gradient was not finite


class Observer:
    """Base of those that are notified of what happens during training, which override what they want to know."""

    def on_update(self) -> None:
        """Handle an update."""

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Handle a reported update, before `on_update`."""

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Handle a validation."""

    def close(self) -> None:
        """Handle the end of the training, interrupted or not."""


def attempt(name: str, act: Callable[[], None]) -> bool:
    """Do what a training can do without: if it fails, a line says so. Return whether it has succeeded."""
    try:
        act()
    except Exception as error:
        print_above_bars(f"The training continues without {name}: {first_line(error)}")
        return False
    return True


class Decoration(Observer):
    """An observer that a training can do without: if it fails, a line says so, and it is not called again."""

    def __init__(self, name: str, make: Callable[[], Observer]) -> None:
        self._name, self._observer = name, Observer()

        def begin() -> None:
            self._observer = make()

        attempt(name, begin)
        for event in ("on_update", "on_step", "on_validation", "close"):
            setattr(self, event, partial(self._pass_on, event))

    def _pass_on(self, event: str, *what: object) -> None:
        if not attempt(self._name, lambda: getattr(self._observer, event)(*what)):
            self._observer = Observer()


@dataclass
class Meter:
    """Sums over the updates since the last report; losses over those that were not skipped.

    All of it is saved with the state of a training. A tensor stays on its device until it is reported.
    """

    nats: Tensor | float = 0.0
    nll: Tensor | float = 0.0
    tokens: Tensor | float = 0.0
    seconds: float = 0.0
    target_tokens: int = 0
    real: int = 0  # positions that hold tokens
    padded: int = 0  # all positions
    nll_since_validation: Tensor | float = 0.0
    tokens_since_validation: Tensor | float = 0.0

    def count(
        self, loss: Loss, norm: Tensor, micro_batches: Sequence[AnyBatch], target_tokens: int, seconds: float
    ) -> None:
        """Count an update of all processes; `micro_batches`, whose padding is counted, are those of this process."""
        nats, tokens, nll = (torch.where(norm.isfinite(), total, 0.0) for total in loss[:3])
        self.nats, self.tokens, self.nll = self.nats + nats, self.tokens + tokens, self.nll + nll
        self.nll_since_validation = self.nll_since_validation + nll
        self.tokens_since_validation = self.tokens_since_validation + tokens
        self.seconds, self.target_tokens = self.seconds + seconds, self.target_tokens + target_tokens
        for batch in micro_batches:
            real, padded = filling(batch)
            self.real, self.padded = self.real + real, self.padded + padded

    def report(self, progress: Progress, optimizer: Optimizer, norm: Tensor) -> StepReport:
        """Return the figures since the last report, and start over; `norm` is that of the last update."""
        report = StepReport(
            loss=float(self.nats / self.tokens),
            nll=float(self.nll / self.tokens),
            gradient_norm=norm.item(),
            learning_rate=optimizer.learning_rate,
            target_tokens=progress.target_tokens,
            tokens_per_second=self.target_tokens / max(self.seconds, 1e-9),
            padding=1 - self.real / max(self.padded, 1),
            skipped=int(optimizer.skipped),
        )
        self.nats = self.nll = self.tokens = self.seconds = 0.0
        self.target_tokens = self.real = self.padded = 0
        return report

    def train_loss(self) -> float:
        """Return the nats per target token since the last validation, and start over; NaN if no update was finite."""
        loss = float(torch.as_tensor(self.nll_since_validation) / self.tokens_since_validation)
        self.nll_since_validation = self.tokens_since_validation = 0.0
        return loss


class Terminal(Observer):
    """A progress bar on a terminal, or a line now and then in a log file; each validation as a small block of text.

    `skipped` updates were skipped, and reported, before a resume; `unit` is the name of what is predicted.
    """

    REPORTS_PER_LINE = 5  # where standard error is not a terminal
    BESIDE_THE_BAR = 5  # facts
    JUMP = 1.0  # nats per token, from the minimum of all reports: more than batches differ by

    def __init__(self, training: TrainingConfig, steps_per_epoch: int, unit: str = "tok", skipped: int = 0) -> None:
        self._training, self._steps_per_epoch, self._unit, self._skipped = training, steps_per_epoch, unit, skipped
        self._total = total_steps(training, steps_per_epoch)
        bounded = self._total is not None or training.max_minutes is not None
        # tqdm's own estimates would count the updates before a resume as made just now
        self._bar = tqdm(
            total=1.0 if bounded else None,
            disable=None,
            dynamic_ncols=True,
            bar_format="{percentage:3.0f}%|{bar}| {desc}" if bounded else "step {desc}",
        )
        self._reports, self._min_nll = 0, math.inf

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Update the bar, or print a line."""
        self._reports += 1
        if report.skipped > self._skipped:
            self._skipped = report.skipped
            skipped = f"{report.skipped:,} update{'' if report.skipped == 1 else 's'} skipped so far"
            print_above_bars(f"step {progress.step:,}: {skipped}: gradient not finite")
        if report.nll > self._min_nll + self.JUMP:
            print_above_bars(
                f"step {progress.step:,}: the loss jumped from {self._min_nll:.2f} to {report.nll:.2f}; if it stays, "
                f"training has diverged: start again with a lower --optimizer.peak_lr ({report.learning_rate:g} now)"
            )
            self._min_nll = math.inf
        self._min_nll = min(self._min_nll, report.nll)
        # the share that is done, by the limit that will be reached first
        steps = progress.step / self._total if self._total else 0.0
        done = min(1.0, max(steps, progress.time_spent(self._training)))
        left = duration(progress.seconds * (1 / done - 1)) if done else ""
        facts = [  # the most important first
            f"{progress.step:,}/{self._total:,}" if self._total else f"{progress.step:,}",
            f"loss {report.loss:.3f}",
            *([f"{left} to go"] if left else []),
            f"{report.tokens_per_second:,.0f} {self._unit}/s",
            f"lr {report.learning_rate:.1e}",
            f"epoch {progress.epoch + progress.position / self._steps_per_epoch:.2f}",
            f"padding {report.padding:.1%}",
            f"gradient {report.gradient_norm:.2f}",
            f"{duration(progress.seconds)} so far",
        ]
        if not self._bar.disable:
            self._bar.n = done
            self._bar.set_description_str("  ".join(facts[: self.BESIDE_THE_BAR]))
        elif self._reports % self.REPORTS_PER_LINE == 0:
            print_above_bars("step " + "  ".join(facts))

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Print the scores and sample translations."""
        best = "  (best)" if progress.best_step == progress.step else ""
        when = f"step {progress.step:,}  {duration(progress.seconds)}"
        lines = [f"\n── {when}  train PPL {perplexity(validation.train_loss):.2f}  dev {validation}{best}"]
        if "bleu" in validation.signatures:
            lines.append(f"   {validation.signatures['bleu']}")
        for sample in validation.samples:
            lines += [*(f"   {line}" for line in sample.lines()), ""]
        print_above_bars("\n".join(lines))

    def close(self) -> None:
        """Close the bar."""
        self._bar.close()


LOG = "log.jsonl"  # in a run folder


def read_log(path: Path) -> list[tuple[str, dict[str, Any]]]:
    r"""Return each line that a JsonlLog has written completely, as text and parsed.

    Only "\n" ends a line (sentences may contain U+2028). A line that was truncated by a crash, or damaged on disk, is
    left out: a log is there to be read, and the remaining lines are still valid.
    """
    records = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            text = line.decode()
            record = json.loads(text)
            step, _ = record["step"], record["kind"]
        except (ValueError, TypeError, LookupError):
            continue
        if type(step) is int:
            records.append((text + "\n", record))
    return records


class JsonLines(Observer):
    """A line of JSON for each record.

    A run that is resumed from a step continues the file; later lines belong to lost updates, and are removed.
    """

    def __init__(self, path: Path, step: int) -> None:
        kept = [line for line, record in read_log(path) if record["step"] <= step] if path.exists() else []
        write_text(path, "".join(kept))
        self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, progress: Progress, fields: Mapping[str, object]) -> None:
        """Write a record, whose numbers that are not finite become null."""
        minutes = round(progress.seconds / 60, 3)
        record = {"kind": kind, "step": progress.step, "epoch": progress.epoch, "minutes": minutes, **fields}
        for name, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                record[name] = None  # JSON has no infinities and no NaN
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class JsonlLog(JsonLines):
    """A record of every reported update and every validation."""

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Write the report."""
        self.write("train", progress, report._asdict())

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Write the loss, scores and samples."""
        self.write("dev", progress, {"loss": validation.loss, **validation.perplexities(), **validation.record()})


class TensorBoardLog(Observer):
    """Curves and texts for `tensorboard --logdir pickles`, purged of what is later than the step resumed from."""

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
        self._points("train", report._asdict() | {"perplexity": perplexity(report.nll)}, progress.step)

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Add a point to each dev curve, and the translations."""
        values = {"loss": validation.loss, **validation.perplexities(), **validation.scores}
        self._points("dev", values, progress.step)
        lines = [line for sample in validation.samples for line in (*sample.lines(), "")]
        self._text("dev/samples", lines, progress.step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is pending and close the file."""
        self._writer.close()
