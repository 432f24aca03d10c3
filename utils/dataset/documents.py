"""Monolingual texts as documents: sentences that belong together, in reading order."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from utils.dataset.parallel_text import read_lines
from utils.dataset.token_array import TokenArray


class Document(NamedTuple):
    """A run of lines of a text that belong together."""

    name: str
    n_lines: int


def read_documents(path: Path) -> tuple[Document, ...]:
    """Read the documents of a text, in order, from a file with a name and a number of lines on each line.

    Raises:
        ValueError: no such file, or a line of another form.
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
    """The ids of a text's sentences, numbered throughout the text; lines without a token are not sentences."""

    lines: TokenArray
    rows: NDArray[np.int32]  # the line of each sentence
    bounds: NDArray[np.int64]  # the first sentence of each document, and the number of sentences

    @classmethod
    def of(cls, lines: TokenArray, documents: Sequence[Document]) -> "DocumentTokens":
        """Find the sentences of these documents, which make up the text; documents without one are left out."""
        has_tokens = lines.lengths > 0
        ends = np.cumsum([document.n_lines for document in documents])
        # the number of sentences up to the end of each document
        sentences = np.concatenate([np.zeros(1, np.int64), has_tokens.cumsum()])[ends]
        bounds = np.unique(np.concatenate([np.zeros(1, np.int64), sentences]))
        return cls(lines, np.flatnonzero(has_tokens).astype(np.int32), bounds)

    @property
    def n_sentences(self) -> int:
        """Number of sentences."""
        return len(self.rows)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Number of tokens of each sentence."""
        return self.lines.lengths[self.rows]

    @property
    def document(self) -> NDArray[np.int32]:
        """Number of the document of each sentence."""
        return np.repeat(np.arange(len(self.bounds) - 1, dtype=np.int32), np.diff(self.bounds))

    def gather(self, sentences: NDArray[np.integer]) -> tuple[NDArray[np.uint16 | np.int32], NDArray[np.int64]]:
        """Return the ids of these sentences concatenated, and the length of each."""
        return self.lines.gather(self.rows[sentences])
