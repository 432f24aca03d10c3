"""Labelled texts for sentence classification."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from config.data import LabelledConfig
from const.path import CORPUS
from utils.command import Log
from utils.dataset.batch import AnyBatch, Examples, framed
from utils.dataset.cache import cache_key, file_hash
from utils.dataset.ids import TokenArray, cached_lines
from utils.dataset.text import lines_of
from utils.file import read_json, write_json
from utils.text.tokenizer import Tokenizer

_SHOWN = 20  # labels in an error


def text_pairs(config: LabelledConfig) -> tuple[tuple[Path, Path], ...]:
    """Return text and labels of train, dev and test, which are there."""
    pairs = (config.text, config.labels), (config.dev_text, config.dev_labels), (config.test_text, config.test_labels)
    for path in chain.from_iterable(pairs):
        if not path.is_file():
            raise ValueError(f"no such file: {path}; docs/results.md says how those of kftt_category_ja are made")
    return pairs


def fingerprint(config: LabelledConfig) -> str:
    """Return a hash of the files' contents."""
    return cache_key([file_hash(path) for path in chain.from_iterable(text_pairs(config))])


class LabelNames(tuple[str, ...]):
    """Labels in sorted order; a label's number is its place."""

    @classmethod
    def of(cls, path: Path) -> "LabelNames":
        """Collect all labels of a file."""
        names = cls(sorted(set(_labels(path))))
        if len(names) < 2:
            raise ValueError(f"{path} has only one label, {names[0]!r}: give at least two")
        return names

    @classmethod
    def load(cls, path: Path) -> "LabelNames":
        """Read what `save` wrote."""
        return cls(read_json(path))

    def save(self, path: Path) -> None:
        """Write the labels as a JSON list."""
        write_json(path, self, indent=0)

    def numbers(self, path: Path) -> NDArray[np.int64]:
        """Return the number of each line's label."""
        number, numbers = {name: i for i, name in enumerate(self)}, array("q")
        for line, label in enumerate(_labels(path), start=1):
            if label not in number:
                known = ", ".join(self[:_SHOWN]) + (", ..." if len(self) > _SHOWN else "")
                raise ValueError(f"{path}, line {line}: label {label!r} is not among the training text's: {known}")
            numbers.append(number[label])
        return np.frombuffer(numbers, np.int64)


def _labels(path: Path) -> Iterator[str]:
    for number, line in enumerate(lines_of(path), start=1):
        if not (label := line.strip()):
            raise ValueError(f"{path}, line {number} has no label: each line of the text needs one")
        yield label


class LabelledText(NamedTuple):
    """Texts as ids, and their labels."""

    lines: TokenArray
    labels: NDArray[np.int64]

    @classmethod
    def cached(
        cls, text: Path, labels: Path, names: LabelNames, tokenizer: Tokenizer, log: Log, root: Path = CORPUS
    ) -> "LabelledText":
        """Read two files; the text is encoded at the first call and cached; an empty line is a text too."""
        lines, numbers = cached_lines(f"labelled-{text.stem}", text, tokenizer, log, root), names.numbers(labels)
        if len(lines) != len(numbers):
            raise ValueError(
                f"{text} has {len(lines):,} lines but {labels} has {len(numbers):,}: "
                "line i of one must be the label of line i of the other"
            )
        return cls(lines, numbers)


@dataclass(frozen=True, eq=False)
class LabelledBatch(AnyBatch):
    """B texts `<s> text </s>`, padded at the end, with their labels."""

    ids: Int[Tensor, "B L"]
    label: Int[Tensor, " B"]


def labelled_examples(text: LabelledText, max_tokens: int | None, *_: Any) -> Examples:
    """Return texts as examples; longer ones than `max_tokens`, <s> and </s> included, are truncated."""
    lengths = text.lines.lengths.astype(np.int64)
    if max_tokens is not None:
        if max_tokens < 3:
            raise ValueError(f"max_tokens={max_tokens} leaves no room for a text: give at least 3")
        lengths = np.minimum(lengths, max_tokens - 2)

    def make(rows: NDArray[np.integer], widths: list[int]) -> LabelledBatch:
        ids = framed(*text.lines.gather(rows), lengths[rows], True, *widths)
        return LabelledBatch(torch.from_numpy(ids), torch.from_numpy(text.labels[rows]))

    return Examples([lengths + 2], make, len)
