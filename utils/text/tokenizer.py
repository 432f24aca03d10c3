"""The interface of every tokenizer of the project, and of the text that it learns from."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol


class Lines(Protocol):
    """Lines of text that can be iterated over repeatedly; they need not be in memory."""

    def __len__(self) -> int:
        """Number of lines."""

    def __iter__(self) -> Iterator[str]: ...


class Tokenizer(Protocol):
    """Text to ids and back; ids 0..3 are <pad> <unk> <s> </s>, of which encoding only ever returns <unk>."""

    def __len__(self) -> int:
        """Size of the vocabulary, special tokens included."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without <s> and </s>."""

    def sample(self, texts: Sequence[str], rate: float, seed: int) -> list[list[int]]:
        """Return ids of each text, segmented at random (see `TokenizerConfig.sampling`), without <s> and </s>.

        The result depends only on the arguments.

        Raises:
            ValueError: this kind of tokenizer cannot sample.
        """

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence; <pad>, <s> and </s> are left out."""

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the individual pieces, special tokens included, for people to look at."""

    def save(self, path: Path) -> None:
        """Write everything that `load` needs to this path, its suffix replaced by the tokenizer's own."""


def every_token(tokenizer: Tokenizer) -> list[str]:
    """Return the vocabulary, in the order of the ids."""
    return tokenizer.tokens(range(len(tokenizer)))


def id_of_each(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the id of each token, as `tokens` shows it."""
    return {token: i for i, token in enumerate(every_token(tokenizer))}
