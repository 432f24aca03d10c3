"""The learning rate as a function of the step alone, so that resuming needs no saved state."""

import math

from utils.training.optimizer import OptimizerConfig


def learning_rate(step: int, config: OptimizerConfig, d_model: int) -> float:
    """Learning rate of an update: a linear warm-up to the peak, and then one of

    - inverse_sqrt: peak · √(warmup / step);
    - noam: factor · D^-½ · min(step^-½, step · warmup^-3/2), Vaswani et al. 2017, eq. 3 (the same with another peak);
    - cosine: final + ½ (peak - final) (1 + cos(π · (step - warmup) / decay)), Loshchilov & Hutter 2017, eq. 5,
      without restarts: afterwards it stays at `final`;
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
    return peak if config.schedule == "constant" else peak * math.sqrt(warmup / step)
