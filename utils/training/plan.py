"""How long to train, at which learning rate, with which optimizer settings, and how far a training has come."""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

from utils.device import Device, Precision

OptimizerKind = Literal["adam", "muon"]


@dataclass(frozen=True)
class OptimizerConfig:
    """How the weights are updated; `utils.training.plan` has the learning rate of each step.

    Args:
        kind: adam, for all weights; or muon, for the matrices of hidden layers (each update then learns more and takes
            longer), with adam for embeddings, output, biases and norms at the same learning rate.
        schedule: course of the learning rate after the linear warm-up: inverse_sqrt, falling with the inverse square
            root of the step (Vaswani et al. 2017, eq. 3, is the same with peak_lr = (d_model · warmup_steps)^-½);
            cosine, half a cosine down to final_lr; trapezoid, staying at the peak and falling to final_lr over the
            last updates, of which a training without an end has none (see `train.py --branch`); constant, staying
            at the peak.
        peak_lr: learning rate at the end of the warm-up.
        warmup_steps: updates of linear warm-up; 0: start at the peak.
        decay_steps: updates over which the rate falls to final_lr. cosine: from the end of the warm-up; null: until
            training.max_steps. trapezoid: the last ones before training.max_steps; null: a fifth of them.
        decay_from: update after which a trapezoid falls; null: decay_steps before training.max_steps.
        final_lr: learning rate at the end (cosine, trapezoid).
        betas: decay rates of the running means of the gradient and the squared gradient (adam).
        eps: added to the denominator of each step (adam).
        momentum: decay rate of the running mean of the gradient (muon).
        weight_decay: each update shrinks each matrix by this share times the learning rate; biases and norms are not
            decayed.
        clip_norm: maximum gradient norm over all parameters; null: no clipping.
        ema_decay: validate and translate with a moving average of the weights, which keeps this share at each update,
            such as 0.999; null: with the weights themselves.
    """

    kind: OptimizerKind = "adam"
    schedule: Literal["inverse_sqrt", "cosine", "trapezoid", "constant"] = "inverse_sqrt"
    peak_lr: float = 7e-4
    warmup_steps: int = 4000
    decay_steps: int | None = None
    decay_from: int | None = None
    final_lr: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    momentum: float = 0.95
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0
    ema_decay: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        positive = ("peak_lr", "eps", *(["clip_norm"] if self.clip_norm is not None else []))
        for name in positive:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)}: give a number above 0")
        for name in ("warmup_steps", "final_lr", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)}: give 0 or more")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={list(self.betas)}: give two numbers from 0 to below 1, such as [0.9, 0.98]")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum}: give at least 0 and below 1, such as 0.95")
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise ValueError(
                f"ema_decay={self.ema_decay}: give at least 0 and below 1, such as 0.999, or null for none"
            )
        if self.schedule in ("cosine", "trapezoid"):
            if self.decay_steps is not None and self.decay_steps < 1:
                raise ValueError(
                    f"schedule={self.schedule} with decay_steps={self.decay_steps}: give the number of updates over "
                    "which the learning rate falls, or null"
                )
            if self.final_lr > self.peak_lr:
                raise ValueError(f"final_lr={self.final_lr} is above peak_lr={self.peak_lr}: give at most that")

    def ending_at(self, max_steps: int | None) -> Self:
        """Return the settings with the place of the decay filled in, so that it ends with the training."""
        if self.schedule == "trapezoid" and max_steps is not None and self.decay_from is None:
            decay_steps = self.decay_steps or max(1, max_steps // 5)
            return replace(self, decay_steps=decay_steps, decay_from=max(0, max_steps - decay_steps))
        if self.schedule != "cosine" or self.decay_steps is not None:
            return self
        if max_steps is None:
            raise ValueError(
                "schedule=cosine needs the length of the training in updates: "
                "give training.max_steps, or optimizer.decay_steps"
            )
        if max_steps <= self.warmup_steps:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} leaves none of max_steps={max_steps} for schedule=cosine: "
                "give a shorter warm-up"
            )
        return replace(self, decay_steps=max_steps - self.warmup_steps)


def learning_rate(step: int, config: OptimizerConfig) -> float:
    """Learning rate of an update, numbered from 1: a function of the step alone, so that resuming needs no state.

    It is a linear warm-up to the peak, and then one of

    - inverse_sqrt: peak · √(warmup / step);
    - cosine: final + ½ (peak - final) (1 + cos(π · (step - warmup) / decay)), Loshchilov & Hutter 2017, eq. 5,
      without restarts: afterwards it stays at `final`;
    - trapezoid: the peak until `from`, then final + (peak - final) (1 - √((step - from) / decay)), Hägele et al. 2024,
      eq. 2: a training that need not know its end, since any of its checkpoints can be given a decay of its own;
    - constant: the peak.
    """
    warmup, peak, final = max(1, config.warmup_steps), config.peak_lr, config.final_lr
    if step <= warmup:
        return peak * (step / warmup)
    if config.schedule == "cosine":
        if config.decay_steps is None:
            raise ValueError("schedule=cosine without decay_steps: give the number of updates after the warm-up")
        done = min(1.0, (step - warmup) / config.decay_steps)
        return final + (peak - final) * (1 + math.cos(math.pi * done)) / 2
    if config.schedule == "trapezoid" and config.decay_from is not None and config.decay_steps is not None:
        done = min(1.0, max(0, step - config.decay_from) / config.decay_steps)
        return final + (peak - final) * (1 - math.sqrt(done))
    return peak * math.sqrt(warmup / step) if config.schedule == "inverse_sqrt" else peak


Criterion = Literal["bleu", "chrf", "loss", "accuracy"]  # decides which weights are the best


@dataclass(frozen=True)
class TrainingConfig:
    """The course of a training, which ends at whichever limit is reached first.

    Args:
        max_steps: stop after this many updates; null: no limit.
        max_epochs: stop after this many passes over the training text; null: no limit.
        max_minutes: stop after this much wall-clock time of training and validation, including earlier parts of a
            resumed run; null: no limit.
        patience: stop after this many consecutive validations without a better score; null: never.
        select_by: dev score that decides which weights are the best.
        validate_every: updates between validations; each validation also saves the run.
        report_every: updates between lines of the log, and between steps of the progress bar.
        max_skipped: stop after this many consecutive updates with a non-finite gradient (checked at each report).
        precision: precision of matrix products; auto: bf16 where the machine is fast at it, else fp32.
        compile: fuse operations with torch.compile; takes minutes at the start.
        device: cpu or cuda; auto: cuda if available.
        seed: random seed of initial weights, dropout, sub-word sampling and the order of batches.
    """

    max_steps: int | None = None
    max_epochs: int | None = 20
    max_minutes: float | None = None
    patience: int | None = None
    select_by: Criterion = "loss"
    validate_every: int = 1000
    report_every: int = 10
    max_skipped: int = 20
    precision: Precision = "auto"
    compile: bool = False
    device: Device = "auto"
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        for name in ("validate_every", "report_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give at least 1 update")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience={self.patience}: give at least 1 validation, or null for no limit")
        for name in ("max_steps", "max_epochs", "max_minutes"):
            bound = getattr(self, name)
            if bound is not None and not bound > 0:  # written so that NaN is refused, too
                raise ValueError(f"{name}={bound}: give more than 0, or null for no limit")
        if self.max_skipped < 1:
            raise ValueError(f"max_skipped={self.max_skipped}: give at least 1 update")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: give 0 or more")

    def require_score(self, *known: str) -> None:
        """Refuse to select weights by another score than the loss and those `known` to the task."""
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
        label_smoothing: ε, the share of the target probability that is spread over the whole vocabulary.
        r_drop: α of R-Drop, which takes two passes per batch; 0: off.
    """

    select_by: Criterion = "bleu"
    bleu_sentences: int | None = None
    n_samples: int = 3
    label_smoothing: float = 0.1
    r_drop: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        if self.bleu_sentences is not None and self.bleu_sentences < 1:
            raise ValueError(f"bleu_sentences={self.bleu_sentences}: give at least 1, or null for all")
        if self.n_samples < 0:
            raise ValueError(f"n_samples={self.n_samples}: give 0 or more")


@dataclass
class Progress:
    """How far a training has come: everything besides tensors that is needed to resume it."""

    step: int = 0  # updates made
    epoch: int = 0  # from 0
    position: int = 0  # updates made in this epoch
    target_tokens: int = 0  # trained on so far
    seconds: float = 0.0  # of training and validation
    best_step: int = 0
    best_score: float = float("-inf")
    stale: int = 0  # validations since the best one

    def note(self, score: float) -> None:
        """Record the score of a validation."""
        if score > self.best_score:
            self.best_score, self.best_step, self.stale = score, self.step, 0
        else:
            self.stale += 1

    def forget_scores(self) -> None:
        """Begin to compare scores anew."""
        self.best_score, self.best_step, self.stale = float("-inf"), 0, 0

    def ended(self, plan: TrainingConfig) -> bool:
        """Return whether a limit of the plan is reached."""
        return (
            (plan.max_steps is not None and self.step >= plan.max_steps)
            or (plan.max_epochs is not None and self.epoch >= plan.max_epochs)
            or (plan.max_minutes is not None and self.seconds >= 60 * plan.max_minutes)
            or (plan.patience is not None and self.stale >= plan.patience)
        )
