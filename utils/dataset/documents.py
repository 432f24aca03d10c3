"""Texts of one language as documents: sentences that stand together, in the order in which they are read."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from utils.dataset.parallel_text import read_lines
from utils.dataset.token_array import TokenArray


class Document(NamedTuple):
    """Lines of a text that belong together."""

    name: str
    n_lines: int


def read_documents(path: Path) -> tuple[Document, ...]:
    """The documents of a text, in its order, from a file with a name and a number of lines on each line.

    Raises:
        ValueError: no such file, or a line that is something else.
    """
    documents = []
    for number, line in enumerate(read_lines(path), start=1):
        match line.rsplit(maxsplit=1):
            case [name, count] if count.isascii() and count.isdigit():
                documents.append(Document(name, int(count)))
            case []:
                continue
            case _:
                raise ValueError(
                    f"{path}, line {number}: {line[:60]!r} is not the name of a document and its number of lines: "
                    "write them like KFTT00001 62"
                )
    return tuple(documents)


class DocumentTokens(NamedTuple):
    """The ids of a text's sentences, numbered through it; lines without a token are none."""

    lines: TokenArray
    rows: NDArray[np.int32]  # the line of each sentence
    bounds: NDArray[np.int64]  # the sentence with which each document begins, and how many there are

    @classmethod
    def of(cls, lines: TokenArray, documents: Sequence[Document]) -> "DocumentTokens":
        """Sentences of these documents, whose lines make up the text; documents without a sentence are left out."""
        has_tokens = lines.lengths > 0
        ends = np.cumsum([document.n_lines for document in documents])
        # behind each document, how many sentences there are up to there
        sentences = np.concatenate([np.zeros(1, np.int64), has_tokens.cumsum()])[ends]
        bounds = np.unique(np.concatenate([np.zeros(1, np.int64), sentences]))
        return cls(lines, np.flatnonzero(has_tokens).astype(np.int32), bounds)

    @property
    def n_sentences(self) -> int:
        """How many."""
        return len(self.rows)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each sentence."""
        return self.lines.lengths[self.rows]

    @property
    def document(self) -> NDArray[np.int32]:
        """The document of each sentence, by its number."""
        return np.repeat(np.arange(len(self.bounds) - 1, dtype=np.int32), np.diff(self.bounds))

    def gather(self, sentences: NDArray[np.integer]) -> tuple[NDArray[np.uint16 | np.int32], NDArray[np.int64]]:
        """The ids of these sentences behind one another, and the length of each."""
        return self.lines.gather(self.rows[sentences])
