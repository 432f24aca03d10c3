"""What every tokenizer of the project can do, and what it learns from."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol


class Lines(Protocol):
    """Lines of text that can be gone through again and again; they need not be in memory."""

    def __len__(self) -> int:
        """How many."""

    def __iter__(self) -> Iterator[str]: ...


class Tokenizer(Protocol):
    """Text to ids and back; the ids 0..3 are <pad> <unk> <s> </s>, and encoding never makes them but <unk>."""

    def __len__(self) -> int:
        """Size of the vocabulary, special tokens included."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without <s> and </s>."""

    def sample(self, texts: Sequence[str], rate: float, seed: int) -> list[list[int]]:
        """Ids of each text cut at random (see `TokenizerConfig.sampling`), without <s> and </s>.

        All is a function of the arguments.

        Raises:
            ValueError: these tokens have no parts.
        """

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Text of each sequence; <pad>, <s> and </s> are left out."""

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The pieces by themselves, special tokens included, for people to look at."""

    def save(self, path: Path) -> None:
        """Write all that `load` needs to this path, its suffix replaced by the tokenizer's own."""


def every_token(tokenizer: Tokenizer) -> list[str]:
    """The vocabulary, in the order of the ids."""
    return tokenizer.tokens(range(len(tokenizer)))


def id_of_each(tokenizer: Tokenizer) -> dict[str, int]:
    """The way back from what `tokens` gives."""
    return {token: i for i, token in enumerate(every_token(tokenizer))}
