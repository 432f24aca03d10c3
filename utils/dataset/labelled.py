"""Labelled texts for sentence classification."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from const.path import CORPUS
from const.token import BOS_ID, PAD_ID
from utils.dataset.buckets import Buckets, fill
from utils.dataset.cache_key import cache_key
from utils.dataset.file_hash import file_hash
from utils.dataset.line_cache import TextLines, cached_lines
from utils.dataset.sampler import Sampler
from utils.dataset.token_array import TokenArray
from utils.file import read_json, write_text
from utils.text.tokenizer import Tokenizer

_SHOWN = 20  # labels in an error


@dataclass(frozen=True)
class LabelledConfig:
    """Texts and their labels, line by line in two files.

    Attributes:
        text: training text, one sentence per line
        labels: labels of the training text, one per line: any words
        dev_text: development text, used to choose models
        dev_labels: labels of the development text
        test_text: test text
        test_labels: labels of the test text
    """

    text: Path
    labels: Path
    dev_text: Path
    dev_labels: Path
    test_text: Path
    test_labels: Path

    def pairs(self) -> tuple[tuple[Path, Path], ...]:
        """Return text and labels of train, dev and test.

        Raises:
            ValueError: a file is missing.
        """
        pairs = (self.text, self.labels), (self.dev_text, self.dev_labels), (self.test_text, self.test_labels)
        for path in chain.from_iterable(pairs):
            if not path.is_file():
                raise ValueError(
                    f"no such file: {path}; python -m utils.dataset.article_category writes the files of "
                    "const/preset/kftt_category_ja.yaml"
                )
        return pairs

    def fingerprint(self, root: Path = CORPUS) -> str:
        """Return a hash of the files' contents.

        Args:
            root: where the hashes of large files are remembered
        """
        return cache_key([file_hash(path, root) for path in chain.from_iterable(self.pairs())])


class LabelNames(tuple[str, ...]):
    """Labels in sorted order; a label's number is its place."""

    @classmethod
    def of(cls, path: Path) -> "LabelNames":
        """Collect all labels of a file.

        Raises:
            ValueError: no such file, a line without a label, or fewer than two different labels.
        """
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
        write_text(path, json.dumps(self, ensure_ascii=False, indent=0) + "\n")

    def numbers(self, path: Path) -> NDArray[np.int64]:
        """Return the number of each line's label.

        Raises:
            ValueError: no such file, a line without a label, or an unknown label.
        """
        number = {name: i for i, name in enumerate(self)}

        def numbered() -> Iterator[int]:
            for line, label in enumerate(_labels(path), start=1):
                if label not in number:
                    known = ", ".join(self[:_SHOWN]) + (", ..." if len(self) > _SHOWN else "")
                    raise ValueError(f"{path}, line {line}: label {label!r} is not among the training text's: {known}")
                yield number[label]

        return np.fromiter(numbered(), np.int64)


def _labels(path: Path) -> Iterator[str]:
    for number, line in enumerate(TextLines(path), start=1):
        if not (label := line.strip()):
            raise ValueError(f"{path}, line {number} has no label: each line of the text needs one")
        yield label


class LabelledText(NamedTuple):
    """Texts as ids, and their labels."""

    lines: TokenArray
    labels: NDArray[np.int64]

    @classmethod
    def cached(
        cls,
        text: Path,
        labels: Path,
        names: LabelNames,
        tokenizer: Tokenizer,
        say: Callable[[str], None],
        root: Path = CORPUS,
    ) -> "LabelledText":
        """Read two files; the text is encoded at the first call and cached.

        Args:
            text: one text per line; an empty line is a text too.
            labels: the label of each line.
            names: the known labels.
            tokenizer: what encodes the text.
            say: called with a message about what takes time.
            root: where caches are kept.

        Raises:
            ValueError: as in `LabelNames.numbers`, or the files have different numbers of lines.
        """
        found = cls(cached_lines(f"labelled-{text.stem}", text, tokenizer, say, root), names.numbers(labels))
        if len(found.lines) != len(found.labels):
            raise ValueError(
                f"{text} has {len(found.lines):,} lines but {labels} has {len(found.labels):,}: "
                "line i of one must be the label of line i of the other"
            )
        return found


class LabelledBatch(NamedTuple):
    """B texts `<s> text </s>`, padded at the end, with their labels."""

    ids: Int[Tensor, "B L"]
    label: Int[Tensor, " B"]

    @property
    def sides(self) -> dict[str, Int[Tensor, "B L"]]:
        """The ids, the only side."""
        return {"tokens": self.ids}

    def to(self, device: torch.device) -> "LabelledBatch":
        """Copy to a device; from pinned memory without waiting."""
        return LabelledBatch(*(part.to(device, non_blocking=True) for part in self))


class LabelledEpoch:
    """The batches of an epoch, in training order; each is made on demand.

    Args:
        text: the texts.
        tokens_per_batch: most positions of a batch, padding included; a longer text is a batch by itself.
        max_tokens: longer texts, <s> and </s> included, are truncated; None: none are.
        multiple: lengths are padded up to a multiple of it.
        key: seed and number of the epoch.
        sentences_per_batch: most examples of a batch; None: as many as fit.

    Raises:
        ValueError: `max_tokens` has no room for a text.
    """

    n_dropped = 0  # overlong texts are truncated

    def __init__(
        self,
        text: LabelledText,
        tokens_per_batch: int,
        max_tokens: int | None,
        multiple: int,
        key: tuple[int, int],
        sentences_per_batch: int | None = None,
    ) -> None:
        if max_tokens is not None and max_tokens < 3:
            raise ValueError(f"max_tokens={max_tokens} leaves no room for a text: give at least 3")
        self._text = text
        lengths = text.lines.lengths.astype(np.int64)
        self._lengths = lengths if max_tokens is None else np.minimum(lengths, max_tokens - 2)
        random = np.random.default_rng(key)
        self._buckets = Buckets([self._lengths + 2], tokens_per_batch, multiple, random, sentences_per_batch)
        self.padding = self._buckets.padding  # share of all positions
        self.rows = self._buckets.rows  # the texts of batch i
        self.largest = self._buckets.largest

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._buckets)

    def target_tokens(self, i: int) -> int:
        """Return the number of labels that batch i predicts, without making the batch."""
        return len(self.rows(i))

    def __getitem__(self, i: int) -> LabelledBatch:
        rows = self.rows(i)
        lengths = self._lengths[rows]
        ids = np.full((len(rows), self._buckets.width(i)), PAD_ID, np.int64)
        ids[:, 0] = BOS_ID
        fill(ids, 1, *self._text.lines.gather(rows), lengths)
        return LabelledBatch(torch.from_numpy(ids), torch.from_numpy(self._text.labels[rows]))

    def __iter__(self) -> Iterator[LabelledBatch]:
        return (self[i] for i in range(len(self)))


class LabelledSampler(Sampler[LabelledEpoch]):
    """Makes epochs of labelled texts.

    Args:
        text: see `LabelledEpoch`.
        tokens_per_batch: see `LabelledEpoch`.
        max_tokens: see `LabelledEpoch`.
        seed: seed of the order.
        multiple: see `LabelledEpoch`.
        sentences_per_batch: see `LabelledEpoch`.
    """

    def __init__(
        self,
        text: LabelledText,
        tokens_per_batch: int,
        max_tokens: int | None = None,
        seed: int = 0,
        multiple: int = 1,
        sentences_per_batch: int | None = None,
    ) -> None:
        super().__init__(
            lambda n: LabelledEpoch(text, tokens_per_batch, max_tokens, multiple, (seed, n), sentences_per_batch)
        )
