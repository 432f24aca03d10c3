"""Dropping the training pairs that teach nothing: empty, overlong, ill-matched or repeated ones.

Dev and test texts are never cleaned: a score counts every sentence.
"""

from dataclasses import dataclass

import numpy as np

from utils.dataset.parallel_text import ParallelText


@dataclass(frozen=True)
class CleanConfig:
    """Which pairs of the training text are dropped. Pairs with an empty side always are.

    Attributes:
        max_chars: longest sentence on either side in characters; null keeps all
        max_length_ratio: how many times longer or shorter a translation may be than the corpus's median
            ratio of lengths in characters predicts (an English text has 3.5 times the characters of the
            Japanese one); null keeps all
        drop_duplicates: keep only the first of identical pairs

    Raises:
        ValueError: a bound that no pair can meet
    """

    max_chars: int | None = 1000
    max_length_ratio: float | None = 4.0
    drop_duplicates: bool = True

    def __post_init__(self) -> None:
        if self.max_chars is not None and self.max_chars < 1:
            raise ValueError(f"max_chars={self.max_chars} drops every pair: give at least 1, or null to keep all")
        if self.max_length_ratio is not None and not self.max_length_ratio >= 1:
            raise ValueError(
                f"max_length_ratio={self.max_length_ratio} drops every pair: give at least 1, or null to keep all"
            )


@dataclass(frozen=True)
class CleanReport:
    """What cleaning did.

    Attributes:
        total: pairs before
        dropped: pairs that each rule dropped, in the order of the rules; a pair counts for the first that hits
    """

    total: int
    dropped: dict[str, int]

    @property
    def kept(self) -> int:
        """Pairs that are left."""
        return self.total - sum(self.dropped.values())

    def __str__(self) -> str:
        lines = [f"{rule:<14}{count:>10,}  {count / self.total:7.2%}" for rule, count in self.dropped.items()]
        return "\n".join([*lines, f"{'kept':<14}{self.kept:>10,}  {self.kept / self.total:7.2%} of {self.total:,}"])


def clean(text: ParallelText, config: CleanConfig) -> tuple[ParallelText, CleanReport]:
    """Drop the pairs that `config` does not want; the order of the others stays.

    Raises:
        ValueError: no pair is left
    """
    src_chars = np.fromiter(map(_chars, text.src), np.int64, len(text))
    tgt_chars = np.fromiter(map(_chars, text.tgt), np.int64, len(text))
    keep = np.ones(len(text), bool)
    dropped = {}

    def drop(rule: str, hit: np.ndarray) -> None:
        dropped[rule] = int((keep & hit).sum())
        keep[hit] = False

    drop("empty", (src_chars == 0) | (tgt_chars == 0))
    if config.max_chars is not None:
        drop("too long", np.maximum(src_chars, tgt_chars) > config.max_chars)
    if config.max_length_ratio is not None and keep.any():
        log_ratio = np.log(np.maximum(tgt_chars, 1) / np.maximum(src_chars, 1))
        off = np.abs(log_ratio - np.median(log_ratio[keep]))
        # the slack makes both directions agree on a ratio that stands exactly at the bound
        drop("length ratio", off > np.log(config.max_length_ratio) + 1e-9)
    if config.drop_duplicates:
        drop("duplicate", _repeats(text, keep))
    report = CleanReport(len(text), dropped)
    if not report.kept:
        counts = ", ".join(f"{rule} {count:,}" for rule, count in dropped.items())
        raise ValueError(f"cleaning leaves none of {len(text):,} pairs ({counts}): loosen --data.clean")
    rows = np.flatnonzero(keep).tolist()
    return ParallelText([text.src[i] for i in rows], [text.tgt[i] for i in rows]), report


def _chars(sentence: str) -> int:
    return 0 if sentence.isspace() else len(sentence)


def _repeats(text: ParallelText, keep: np.ndarray) -> np.ndarray:
    """Marks the pairs that stand earlier among the kept ones too."""
    repeats = np.zeros(len(text), bool)
    seen = set()
    for i in np.flatnonzero(keep).tolist():
        pair = text.src[i], text.tgt[i]
        if pair in seen:
            repeats[i] = True
        seen.add(pair)
    return repeats
