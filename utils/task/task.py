"""What train.py must know of a task; each module beside this one is one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from utils.conclusion import Judge, Trained
from utils.config import AnyConfig
from utils.dataset.training_data import AnyBatch, Sampler
from utils.text.vocabulary import Vocabulary
from utils.training.objective import Objective

Say = Callable[[str], None]


class Task(Protocol):
    """Something to learn, its texts at hand. `net` is always what `build` made."""

    @property
    def config(self) -> AnyConfig:
        """All settings, those that follow from another run included."""

    @property
    def sampler(self) -> Sampler:
        """Cuts the training text into batches."""

    @property
    def objective(self) -> Objective:
        """What to minimise."""

    @property
    def unit(self) -> str:
        """What it predicts, and the loss is a mean of, as a log of its speed calls it."""

    @property
    def sizes(self) -> dict[str, int]:
        """Of all that the network numbers: tokens, labels."""

    @property
    def vocabulary(self) -> Vocabulary:
        """What belongs into the folder of a run besides its settings."""

    def build(self) -> nn.Module:
        """The network at its beginning; its random numbers are of torch's generator."""

    def validation(self, net: Any) -> tuple[Sequence[AnyBatch], Judge]:
        """The dev text, and what scores the network on it, given its loss."""

    def conclude(self, trained: Trained, folder: Path, say: Say) -> None:
        """Test the best weights, and leave in the folder what shows how good they are."""
