"""The learning rate as a function of the step alone, so that a resumed training needs to remember none."""

import math

from utils.training.optimizer import OptimizerConfig


def learning_rate(step: int, config: OptimizerConfig, d_model: int) -> float:
    """What an update may go by: a linear rise to the peak, and then one of

    - inverse_sqrt: peak · √(warmup / step);
    - noam: factor · D^-½ · min(step^-½, step · warmup^-3/2), Vaswani et al. 2017, eq. 3, the same by another peak;
    - cosine: final + ½ (peak - final) (1 + cos(π · (step - warmup) / decay)), Loshchilov & Hutter 2017, eq. 5,
      without restarts: it stays at `final`;
    - constant: the peak.

    Args:
        step: of the update that is about to be made, from 1.
        config: which course, and its numbers.
        d_model: D, width of the network (noam).

    Raises:
        ValueError: a cosine that nothing has said the length of, see `OptimizerConfig.ending_at`.
    """
    warmup = max(1, config.warmup_steps)
    peak = config.peak_lr
    if config.schedule == "noam":
        peak = config.noam_factor * (d_model * warmup) ** -0.5
    if step <= warmup:
        return peak * (step / warmup)
    if config.schedule == "cosine":
        if config.decay_steps is None:
            raise ValueError("schedule=cosine without decay_steps: give the updates from the warm-up's end")
        done = min(1.0, (step - warmup) / config.decay_steps)
        return config.final_lr + (peak - config.final_lr) * (1 + math.cos(math.pi * done)) / 2
    return peak if config.schedule == "constant" else peak * math.sqrt(warmup / step)
