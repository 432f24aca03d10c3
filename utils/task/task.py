"""What train.py needs to know about a task.

The tasks are modules next to this one: translation, masked_language, language, classification. So are the commands
that use the models of the last three.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from utils.config import AnyConfig
from utils.dataset.sampler import Sampler
from utils.dataset.training_data import AnyBatch
from utils.task.conclusion import Trained
from utils.text.vocabulary import Vocabulary
from utils.training.objective import Objective
from utils.training.validation import Judge

Say = Callable[[str], None]


class Task(Protocol):
    """Something to learn, with its texts prepared. `net` is always what `build` returned."""

    @property
    def config(self) -> AnyConfig:
        """All settings, including those that follow from another run."""

    @property
    def sampler(self) -> Sampler[Any]:
        """Splits the training text into batches."""

    @property
    def objective(self) -> Objective:
        """What to minimise."""

    @property
    def unit(self) -> str:
        """Name of what is predicted and the loss is averaged over, for reports of speed."""

    @property
    def sizes(self) -> dict[str, int]:
        """Number of tokens of each vocabulary, and of labels."""

    @property
    def fingerprint(self) -> str:
        """Hash of the texts' content."""

    @property
    def vocabulary(self) -> Vocabulary:
        """What is saved in the folder of a run besides its settings."""

    def build(self) -> nn.Module:
        """Build the network, initialised with torch's random number generator."""

    def validation(self, net: Any) -> tuple[Sequence[AnyBatch], Judge]:
        """Return the dev text, and what scores the network on it, given its loss."""

    def conclude(self, trained: Trained, folder: Path, say: Say) -> None:
        """Test the best weights, and write the results to the folder."""
