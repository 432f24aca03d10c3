"""Dropping training pairs of no use: empty, overlong, mismatched or repeated ones.

Dev and test texts are never cleaned: a score counts every sentence.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from utils.dataset.parallel_text import ParallelFiles, read_blocks
from utils.dataset.repeated import pair_hashes, repeated
from utils.dataset.text_blocks import TextBlocks


@dataclass(frozen=True)
class CleanConfig:
    """Which pairs of the training text are dropped. Pairs with an empty side always are.

    Attributes:
        max_chars: longest sentence on either side in characters; null keeps all
        max_length_ratio: how many times longer or shorter a translation may be than predicted by the corpus's median
            ratio of lengths in characters (an English text has 3.5 times the characters of the Japanese one); null
            keeps all
        drop_duplicates: keep only the first of identical pairs
        max_pairs: learn from only the first N of the remaining pairs, further text (`more_src`) not counted; null
            keeps all

    Raises:
        ValueError: a bound that no pair can meet
    """

    max_chars: int | None = 1000
    max_length_ratio: float | None = 4.0
    drop_duplicates: bool = True
    max_pairs: int | None = None

    def __post_init__(self) -> None:
        if self.max_chars is not None and self.max_chars < 1:
            raise ValueError(f"max_chars={self.max_chars} drops every pair: give at least 1, or null to keep all")
        if self.max_pairs is not None and self.max_pairs < 1:
            raise ValueError(f"max_pairs={self.max_pairs} drops every pair: give at least 1, or null to keep all")
        if self.max_length_ratio is not None and not self.max_length_ratio >= 1:
            raise ValueError(
                f"max_length_ratio={self.max_length_ratio} drops every pair: give at least 1, or null to keep all"
            )


@dataclass(frozen=True)
class CleanReport:
    """The result of cleaning, in numbers.

    Attributes:
        total: pairs before cleaning
        dropped: pairs that each rule dropped, in the order of the rules; a pair counts for the first that applies
    """

    total: int
    dropped: dict[str, int]

    @property
    def kept(self) -> int:
        """Number of pairs that are left."""
        return self.total - sum(self.dropped.values())

    def __str__(self) -> str:
        lines = [f"{rule:<14}{count:>10,}  {count / self.total:7.2%}" for rule, count in self.dropped.items()]
        return "\n".join([*lines, f"{'kept':<14}{self.kept:>10,}  {self.kept / self.total:7.2%} of {self.total:,}"])


def clean(files: ParallelFiles, config: CleanConfig, n_more: int = 0) -> tuple[TextBlocks, CleanReport]:
    """Drop the pairs that `config` excludes; the order of the rest stays.

    The text is read once, and only numbers are kept of it: two lengths and a hash per pair.

    Args:
        files: the text
        config: what to drop
        n_more: how many pairs at the end are further text, which `max_pairs` does not count

    Raises:
        ValueError: a file is missing, empty or not UTF-8, the line counts differ, or no pair is left
    """
    ends: list[tuple[int, int, int]] = []
    chars: tuple[list[NDArray[np.int32]], list[NDArray[np.int32]]] = [], []
    hashed: list[NDArray[np.uint64]] = []
    for block in read_blocks(files):
        ends.append(block.ends)
        for side, lines in zip(chars, (block.src, block.tgt), strict=True):
            side.append(np.fromiter(map(_chars, lines), np.int32, len(lines)))
        if config.drop_duplicates:
            hashed.append(pair_hashes(zip(block.src, block.tgt, strict=True)))
    src_chars, tgt_chars = (np.concatenate(side) for side in chars)
    keep = np.ones(len(src_chars), bool)
    dropped = {}

    def drop(rule: str, hit: NDArray[np.bool_]) -> None:
        hit = hit & keep
        dropped[rule] = int(hit.sum())
        keep[hit] = False

    drop("empty", (src_chars == 0) | (tgt_chars == 0))
    if config.max_chars is not None:
        drop("too long", np.maximum(src_chars, tgt_chars) > config.max_chars)
    if config.max_length_ratio is not None and keep.any():
        off = np.log(np.maximum(tgt_chars, 1) / np.maximum(src_chars, 1))
        off = np.abs(off - np.median(off[keep]))
        # the slack makes both directions agree on a ratio that is exactly at the bound
        drop("length ratio", off > np.log(config.max_length_ratio) + 1e-9)
    if config.drop_duplicates:
        drop("duplicate", repeated(np.concatenate(hashed), keep))
    if config.max_pairs is not None:
        is_more = np.arange(len(keep)) >= len(keep) - n_more
        drop("over max_pairs", (keep.cumsum() > config.max_pairs) & ~is_more)
    report = CleanReport(len(keep), dropped)
    if not report.kept:
        counts = ", ".join(f"{rule} {count:,}" for rule, count in dropped.items())
        raise ValueError(f"cleaning leaves none of {len(keep):,} pairs ({counts}): loosen --data.clean")
    return TextBlocks(files, np.array(ends, np.int64), keep), report


def _chars(sentence: str) -> int:
    return 0 if sentence.isspace() else len(sentence)
