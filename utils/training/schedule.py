"""The learning rate as a function of the step alone, so that resuming needs no saved state."""

import math

from utils.training.optimizer import OptimizerConfig


def learning_rate(step: int, config: OptimizerConfig, d_model: int) -> float:
    """Learning rate of an update: a linear warm-up to the peak, and then one of

    - inverse_sqrt: peak · √(warmup / step);
    - noam: factor · D^-½ · min(step^-½, step · warmup^-3/2), Vaswani et al. 2017, eq. 3 (the same with another peak);
    - cosine: final + ½ (peak - final) (1 + cos(π · (step - warmup) / decay)), Loshchilov & Hutter 2017, eq. 5,
      without restarts: afterwards it stays at `final`;
    - trapezoid: the peak until `from`, then final + (peak - final) (1 - √((step - from) / decay)), Hägele et al. 2024,
      eq. 2: a training that need not know its end, since any of its checkpoints can be given a decay of its own;
    - constant: the peak.

    Args:
        step: number of the update that is about to be made, from 1.
        config: the schedule and its settings.
        d_model: D, width of the network (noam).

    Raises:
        ValueError: when the length of a cosine is not set, see `OptimizerConfig.ending_at`.
    """
    warmup = max(1, config.warmup_steps)
    peak = config.peak_lr
    if config.schedule == "noam":
        peak = config.noam_factor * (d_model * warmup) ** -0.5
    if step <= warmup:
        return peak * (step / warmup)
    if config.schedule == "cosine":
        if config.decay_steps is None:
            raise ValueError("schedule=cosine without decay_steps: give the number of updates after the warm-up")
        done = min(1.0, (step - warmup) / config.decay_steps)
        return config.final_lr + (peak - config.final_lr) * (1 + math.cos(math.pi * done)) / 2
    if config.schedule == "trapezoid" and config.decay_from is not None and config.decay_steps is not None:
        done = min(1.0, max(0, step - config.decay_from) / config.decay_steps)
        return config.final_lr + (peak - config.final_lr) * (1 - math.sqrt(done))
    return peak * math.sqrt(warmup / step) if config.schedule in ("inverse_sqrt", "noam") else peak
