"""Output of a training on the terminal."""

import math
import os
import sys
from collections import deque
from collections.abc import Iterator

from tqdm import tqdm

from utils.above_bars import print_above_bars
from utils.duration import duration
from utils.training.observer import Observer, StepReport
from utils.training.plan import TrainingConfig
from utils.training.progress import Progress
from utils.training.validation import Validation


class Terminal(Observer):
    """A progress bar on a terminal, or a line now and then in a log file; each validation as a small block of text.

    Args:
        plan: limits of the training.
        steps_per_epoch: updates in a pass over the training text.
        unit: name of what is predicted.
        skipped: updates that were skipped before a resume, and reported then.
    """

    REPORTS_PER_LINE = 5  # where standard error is not a terminal
    REPORTS_TO_ESTIMATE = 2  # after which the remaining time is estimated
    BAR = 8  # minimum width of the bar, in columns

    def __init__(self, plan: TrainingConfig, steps_per_epoch: int, unit: str = "tok", skipped: int = 0) -> None:
        self._plan = plan
        self._steps_per_epoch = steps_per_epoch
        self._unit = unit
        self._live = sys.stderr.isatty()
        bounds = [plan.max_steps, plan.max_epochs and plan.max_epochs * steps_per_epoch]
        self._total = min((bound for bound in bounds if bound is not None), default=None)
        bounded = self._total is not None or plan.max_minutes is not None
        # tqdm's own estimates would count the updates before a resume as made just now
        self._bar = tqdm(
            total=1.0 if bounded else None,
            disable=not self._live,
            dynamic_ncols=True,
            bar_format="{percentage:3.0f}%|{bar}| {desc}" if bounded else "step {desc}",
        )
        self._losses: deque[float] = deque(maxlen=self.REPORTS_PER_LINE)
        self._skipped = skipped
        self._reports = 0

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Update the bar, or print a line."""
        self._reports += 1
        if math.isfinite(report.loss):
            self._losses.append(report.loss)
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
        """Yield the facts to show, the most important first."""
        yield f"{progress.step:,}/{self._total:,}" if self._total else f"{progress.step:,}"
        yield f"loss {sum(self._losses) / len(self._losses) if self._losses else math.nan:.3f}"
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
        """Join the first facts, as many as fit on a line beside the bar."""
        room, text = terminal_columns() - len("100%|| ") - self.BAR, ""
        for fact in facts:
            if len(text) + len(fact) + 2 > room:
                break
            text += f"  {fact}" if text else fact
        return text

    def _done(self, progress: Progress) -> float:
        """Return the share of the training that is done, by the limit that will be reached first."""
        steps = progress.step / self._total if self._total else 0.0
        minutes = progress.seconds / 60 / self._plan.max_minutes if self._plan.max_minutes else 0.0
        return min(1.0, max(steps, minutes))

    def _remaining(self, progress: Progress) -> float | None:
        """Estimate the remaining seconds, by the limit that will be reached first; None: no limit."""
        bounds = []
        if self._total:
            bounds.append((self._total - progress.step) * progress.seconds / progress.step)
        if self._plan.max_minutes is not None:
            bounds.append(60 * self._plan.max_minutes - progress.seconds)
        return max(0.0, min(bounds)) if bounds else None

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Print the scores and sample translations."""
        best = "  (best)" if progress.best_step == progress.step else ""
        when = f"step {progress.step:,}  {duration(progress.seconds)}"
        print_above_bars(f"\n── {when}  dev loss {validation.loss:.3f}  {validation}{best}")
        if "bleu" in validation.signatures:
            print_above_bars(f"   {validation.signatures['bleu']}")
        for sample in validation.samples:
            print_above_bars("".join(f"\n   {line}" for line in sample.lines())[1:])
        print_above_bars("")

    def close(self) -> None:
        """Close the bar."""
        self._bar.close()


def terminal_columns() -> int:
    """Return the width of the terminal on standard error; 80 if unknown."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
