"""The learning rate schedules of `utils.training.schedule`."""

from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np

from utils.training.optimizer import OptimizerConfig
from utils.training.schedule import learning_rate
from utils.visualize.sheet import sheet

_STEPS, _WARMUP, _D_MODEL = 6000, 1000, 512
_NOAM = ((512, 1000), (512, 2000), (256, 1000))  # d_model and warm-up


def draw_learning_rates(picture: Path) -> None:
    """Draw all four schedules over the updates, and the paper's for several widths and warm-ups."""
    steps = np.unique(np.linspace(1, _STEPS, 600).round().astype(int))
    with sheet(picture, (10, 3.8), columns=2) as (courses, noam):
        for schedule in get_args(get_type_hints(OptimizerConfig)["schedule"]):
            config = OptimizerConfig(
                schedule=schedule, peak_lr=1e-3, warmup_steps=_WARMUP, decay_steps=_STEPS - _WARMUP, noam_factor=0.5
            )
            label = "noam, noam_factor 0.5" if schedule == "noam" else schedule
            courses.plot(steps, [learning_rate(int(step), config, _D_MODEL) for step in steps], label=label)
        courses.set(title=f"peak_lr 0.001, warmup_steps {_WARMUP}, d_model {_D_MODEL}", ylim=(0, 0.0013))
        for d_model, warmup in _NOAM:
            config = OptimizerConfig(schedule="noam", warmup_steps=warmup)
            rates = [learning_rate(int(step), config, d_model) for step in steps]
            noam.plot(steps, rates, label=f"d_model {d_model}, warmup_steps {warmup}")
        noam.set(title="noam", ylim=(0, None))
        for axes in (courses, noam):
            axes.set(xlabel="update", ylabel="learning rate")
            axes.grid(alpha=0.3)
            axes.legend(frameon=False, loc="upper right", ncols=2 if axes is courses else 1)
