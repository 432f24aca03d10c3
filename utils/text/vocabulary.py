"""What a network's numbers mean."""

from pathlib import Path
from typing import Protocol


class Vocabulary(Protocol):
    """Tokenizers, labels."""

    def save(self, folder: Path) -> None:
        """Write it into a folder."""
