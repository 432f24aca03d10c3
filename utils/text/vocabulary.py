"""The interface of whatever gives meaning to a network's ids."""

from pathlib import Path
from typing import Protocol


class Vocabulary(Protocol):
    """What tokenizers and label names have in common."""

    def save(self, folder: Path) -> None:
        """Write the vocabulary into a folder."""
