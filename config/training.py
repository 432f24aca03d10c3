"""The course of a training: how the weights are updated, for how long, and what is left on disk."""

from dataclasses import dataclass, replace
from typing import Literal, Self

from config.bound import Config, bounded

Device = Literal["auto", "cpu", "cuda"]
NO_CUDA = "device=cuda, but CUDA is not available here: use device=cpu, or leave it at auto"
Precision = Literal["auto", "fp32", "bf16", "fp16"]
InferencePrecision = Literal[Precision, "int8"]  # of linear layers, on a CPU
Criterion = Literal["bleu", "chrf", "loss", "accuracy"]  # decides which weights are the best
_INFINITY = float("inf")


@dataclass(frozen=True)
class OptimizerConfig(Config):
    """How the weights are updated; `utils.training.schedule` has the learning rate of each step.

    Args:
        kind: adam, for all weights; or muon, for the matrices of hidden layers (each update then learns more and takes
            longer), with adam for embeddings, output, biases and norms at the same learning rate.
        schedule: course of the learning rate after the linear warm-up: inverse_sqrt, falling with the inverse square
            root of the step; cosine, half a cosine down to final_lr; trapezoid, staying at the peak and falling to
            final_lr over the last updates, of which a training without an end has none (see `train.py --branch`);
            constant, staying at the peak.
        peak_lr: learning rate at the end of the warm-up.
        warmup_steps: updates of linear warm-up; 0: start at the peak.
        decay_steps: updates over which the rate falls to final_lr. cosine: from the end of the warm-up; null: until
            training.max_steps. trapezoid: the last ones before training.max_steps; null: a fifth of them. Where neither
            they nor max_steps are known, but training.max_minutes is, the rate falls by the clock instead.
        decay_from: update after which a trapezoid falls; null: decay_steps before training.max_steps.
        final_lr: learning rate at the end (cosine, trapezoid); at 0, the training ends as well.
        betas: decay rates of the running means of the gradient and the squared gradient (adam).
        eps: added to the denominator of each step (adam).
        momentum: decay rate of the running mean of the gradient (muon).
        weight_decay: each update shrinks each matrix by this share times the learning rate; biases and norms are not
            decayed.
        clip_norm: maximum gradient norm over all parameters; null: no clipping.
        ema_decay: validate and translate with a moving average of the weights, which keeps this share at each update,
            such as 0.999; null: with the weights themselves.
    """

    kind: Literal["adam", "muon"] = "adam"
    schedule: Literal["inverse_sqrt", "cosine", "trapezoid", "constant"] = "inverse_sqrt"
    peak_lr: float = bounded(7e-4, gt=0, lt=_INFINITY)
    warmup_steps: int = bounded(4000, ge=0)
    decay_steps: int | None = bounded(None, ge=1)
    decay_from: int | None = bounded(None, ge=0)
    final_lr: float = bounded(0.0, ge=0, lt=_INFINITY)
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = bounded(1e-9, gt=0, lt=_INFINITY)
    momentum: float = bounded(0.95, ge=0, lt=1)
    weight_decay: float = bounded(0.0, ge=0, lt=_INFINITY)
    clip_norm: float | None = bounded(1.0, gt=0, lt=_INFINITY)
    ema_decay: float | None = bounded(None, ge=0, lt=1)

    def check(self) -> None:
        """Refuse decay rates of 1, and a rate that falls upwards."""
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={list(self.betas)}: give two numbers from 0 to below 1, such as [0.9, 0.98]")
        if self.schedule in ("cosine", "trapezoid") and self.final_lr > self.peak_lr:
            raise ValueError(f"final_lr={self.final_lr} is above peak_lr={self.peak_lr}: give at most that")

    @property
    def last_step(self) -> int | None:
        """Update at which the rate has fallen to 0, so that a later one learns nothing; None: none, or by the clock."""
        begin = {"cosine": self.warmup_steps, "trapezoid": self.decay_from}.get(self.schedule)
        return None if self.final_lr or begin is None or self.decay_steps is None else begin + self.decay_steps

    def ending_at(self, max_steps: int | None, max_minutes: float | None = None) -> Self:
        """Return the settings with the place of the decay filled in, so that it ends with the training.

        A cosine must know the number of updates or a bound of the time.
        """
        if self.schedule == "trapezoid" and max_steps is not None and self.decay_from is None:
            decay_steps = self.decay_steps or max(1, max_steps // 5)
            return replace(self, decay_steps=decay_steps, decay_from=max(0, max_steps - decay_steps))
        if self.schedule != "cosine" or self.decay_steps is not None:
            return self
        if max_steps is None:
            if max_minutes is not None:
                return self
            raise ValueError(
                "schedule=cosine needs the length of the training: "
                "give training.max_steps or training.max_minutes, or optimizer.decay_steps"
            )
        if max_steps <= self.warmup_steps:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} leaves none of max_steps={max_steps} for schedule=cosine: "
                "give a shorter warm-up"
            )
        return replace(self, decay_steps=max_steps - self.warmup_steps)


@dataclass(frozen=True)
class TrainingConfig(Config):
    """The course of a training, which ends at whichever limit is reached first.

    Args:
        max_steps: stop after this many updates; null: no limit.
        max_epochs: stop after this many passes over the training text; null: no limit.
        max_minutes: stop after this much wall-clock time of training and validation, including earlier parts of a
            resumed run; null: no limit.
        patience: stop after this many consecutive validations without a better score; null: never.
        select_by: dev score that decides which weights are the best.
        validate_every: updates between validations; each validation also saves the run. Where the first of them takes
            longer than eight minutes to reach, others come before it.
        report_every: updates between lines of the log, and between steps of the progress bar.
        max_skipped: stop after this many consecutive updates with a non-finite gradient (checked at each report).
        precision: precision of matrix products; auto: bf16 where it is measured to be fast, else fp32.
        compile: fuse operations with torch.compile; takes minutes at the start.
        graphs: on CUDA, launch the passes of a batch as one CUDA graph, recorded for each shape of a batch.
        device: cpu or cuda; auto: cuda if available.
        seed: random seed of initial weights, dropout, sub-word sampling and the order of batches.
    """

    max_steps: int | None = bounded(None, gt=0)
    max_epochs: int | None = bounded(20, gt=0)
    max_minutes: float | None = bounded(None, gt=0)
    patience: int | None = bounded(None, ge=1)
    select_by: Criterion = "loss"
    validate_every: int = bounded(1000, ge=1)
    report_every: int = bounded(10, ge=1)
    max_skipped: int = bounded(20, ge=1)
    precision: Precision = "auto"
    compile: bool = False
    graphs: bool = True
    device: Device = "auto"
    seed: int = bounded(1, ge=0, le=2**32 - 1)

    def require_score(self, *known: str) -> None:
        """Refuse to select weights by a score that the task does not have: neither the loss nor one of those known."""
        if self.select_by not in ("loss", *known):
            raise ValueError(
                f"select_by={self.select_by} is not scored by this task: give {', '.join((*known, 'loss'))}"
            )


@dataclass(frozen=True)
class TranslationTrainingConfig(TrainingConfig):
    """The course of a translator's training, with the settings of its objective.

    Args:
        select_by: dev score that decides which weights are the best.
        bleu_sentences: number of dev sentences, from the first, to translate at each validation; null: all. The dev
            loss is always over all sentences.
        n_samples: number of translations to show at each validation.
        watch: number of dev sentences whose translation, attention and guesses by layer are kept at each validation,
            for the page watch.html in the run's folder.
        label_smoothing: ε, the share of the target probability that is spread over the whole vocabulary.
        r_drop: α of R-Drop, which takes two passes per batch; 0: off.
    """

    select_by: Criterion = "bleu"
    bleu_sentences: int | None = bounded(None, ge=1)
    n_samples: int = bounded(3, ge=0)
    watch: int = bounded(0, ge=0, le=100, hint="0: no page")
    label_smoothing: float = bounded(0.1, ge=0, lt=1)
    r_drop: float = bounded(0.0, ge=0, lt=_INFINITY)


@dataclass(frozen=True)
class CheckpointConfig(Config):
    """What a training leaves on disk.

    Args:
        keep_last: number of newest checkpoints to keep; if the newest is damaged, the one before it is used.
        keep_best: number of validations, the best by dev score, whose weights are kept in weights/.
        average_last: number of last validations whose weights are averaged at the end; the average is used if it
            scores no worse on the dev set. 0: no averaging.
    """

    keep_last: int = bounded(2, ge=1)
    keep_best: int = bounded(1, ge=0)
    average_last: int = bounded(0, ge=0)
