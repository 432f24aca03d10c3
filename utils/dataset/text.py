"""Parallel text: reading it line by line or block by block, cleaning it, and holding some of it out."""

import codecs
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

# Reading a text and its translation, line by line: line i of one file is the translation of line i of the other.

BLOCK = 8192  # lines read, cleaned and encoded together
# how files begin that are often given in place of UTF-8 text
_OTHER_KINDS = {
    b"\x1f\x8b": "compressed (gzip): unpack it first",
    b"\xfd7zXZ\0": "compressed (xz): unpack it first",
    b"BZh": "compressed (bzip2): unpack it first",
    b"PK\x03\x04": "a zip archive: unpack it first",
    codecs.BOM_UTF16_LE: "UTF-16: save it as UTF-8",
    codecs.BOM_UTF16_BE: "UTF-16: save it as UTF-8",
}


class ParallelFiles(NamedTuple):
    """A text file and its translation."""

    src: Path
    tgt: Path


@dataclass(frozen=True)
class ParallelText:
    """Sentences and their translations: `src[i]` and `tgt[i]` are a pair.

    Raises:
        ValueError: the sides have different numbers of lines
    """

    src: list[str]
    tgt: list[str]

    def __post_init__(self) -> None:
        if len(self.src) != len(self.tgt):
            raise ValueError(f"{len(self.src):,} source lines but {len(self.tgt):,} target lines: give one for each")

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, part: slice) -> "ParallelText":
        return ParallelText(self.src[part], self.tgt[part])


def decoded_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    r"""Decode the lines of a binary UTF-8 stream as they come, without a byte order mark, "\n" and Windows' "\r".

    Only "\n" ends a line. `str.splitlines` also breaks at U+2028, U+0085 and others, which occur inside sentences of
    real corpora; from there on, every sentence would be paired with its neighbour's translation.

    Args:
        file: lines of bytes, as iterating over a binary file gives them.
        name: name of the stream, for error messages.

    Raises:
        ValueError: invalid UTF-8
    """
    for number, line in enumerate(file, start=1):
        if number == 1:
            line = first = line.removeprefix(codecs.BOM_UTF8)
        try:
            yield line.decode("utf-8").removesuffix("\n").rstrip("\r")
        except UnicodeDecodeError as error:
            for beginning, kind in _OTHER_KINDS.items():
                if first.startswith(beginning):
                    raise ValueError(f"{name} is {kind}") from None
            byte = line[error.start]
            raise ValueError(f"{name}, line {number}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8") from None


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 file.

    Raises:
        ValueError: no such file, invalid UTF-8, or no text in it
    """
    _refuse_missing(path)
    with path.open("rb") as file:
        lines = list(decoded_lines(file, str(path)))
    _refuse_empty(path, _has_text(lines))
    return lines


def read_parallel(files: ParallelFiles) -> ParallelText:
    """Read both files whole.

    Raises:
        ValueError: a file is missing, empty or not UTF-8, or the line counts differ
    """
    src, tgt = read_lines(files.src), read_lines(files.tgt)
    _refuse_unequal(files, len(src), len(tgt))
    return ParallelText(src, tgt)


class Block(NamedTuple):
    """Consecutive pairs, and where they end: the lines, source bytes and target bytes so far."""

    src: list[str]
    tgt: list[str]
    ends: tuple[int, int, int]


def read_blocks(files: ParallelFiles) -> Iterator[Block]:
    """Read both files side by side, a block at a time, so that a text of any length only takes the memory of a block.

    Raises:
        ValueError: as in `read_parallel`; raised where the fault is, after the blocks before it
    """
    for path in files:
        _refuse_missing(path)
    n_lines, has_text = [0, 0], [False, False]
    with files.src.open("rb") as src_file, files.tgt.open("rb") as tgt_file:
        opened = src_file, tgt_file
        sides = [decoded_lines(file, str(path)) for file, path in zip(opened, files, strict=True)]
        while True:
            # after the end of the shorter file the rest of the other is still read, for the error message
            src, tgt = (list(islice(side, BLOCK)) for side in sides)
            for i, lines in enumerate((src, tgt)):
                n_lines[i] += len(lines)
                has_text[i] = has_text[i] or _has_text(lines)
            if not (src or tgt):
                break
            if n_lines[0] == n_lines[1]:
                yield Block(src, tgt, (n_lines[0], src_file.tell(), tgt_file.tell()))
    for path, has in zip(files, has_text, strict=True):
        _refuse_empty(path, has)
    _refuse_unequal(files, *n_lines)


def _has_text(lines: Iterable[str]) -> bool:
    return any(line.strip() for line in lines)


def _refuse_missing(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"no such file: {path}")


def _refuse_empty(path: Path, has_text: bool) -> None:
    if not has_text:
        raise ValueError(f"{path} holds no text")


def _refuse_unequal(files: ParallelFiles, n_src: int, n_tgt: int) -> None:
    if n_src != n_tgt:
        raise ValueError(
            f"{files.src} has {n_src:,} lines but {files.tgt} has {n_tgt:,}: "
            "line i of one must translate line i of the other"
        )


# Some of the pairs of two files, read a block at a time when needed: the text itself is never kept in memory.


class TextBlocks:
    """The blocks of two files, and which of their pairs are kept.

    Args:
        files: the text and its translation.
        ends: for each block, the lines, source bytes and target bytes up to its end.
        kept: whether each pair is kept, line by line.
    """

    def __init__(self, files: ParallelFiles, ends: NDArray[np.int64], kept: NDArray[np.bool_]) -> None:
        self.files = files
        self._ends = ends
        self._kept = kept
        self._n_kept = int(np.count_nonzero(kept))

    @classmethod
    def whole(cls, files: ParallelFiles) -> "TextBlocks":
        """Keep all pairs of two files.

        Raises:
            ValueError: a file is missing, empty or not UTF-8, or the line counts differ.
        """
        ends = [block.ends for block in read_blocks(files)]
        return cls(files, np.array(ends, np.int64), np.ones(ends[-1][0], bool))

    @classmethod
    def load(cls, files: ParallelFiles, folder: Path) -> "TextBlocks":
        """Load what `save` wrote about these files."""
        return cls(files, np.load(folder / "ends.npy"), np.load(folder / "kept.npy"))

    def save(self, folder: Path) -> None:
        """Write everything but the text into a folder."""
        np.save(folder / "ends.npy", self._ends)
        np.save(folder / "kept.npy", self._kept)

    def __len__(self) -> int:
        """Number of pairs that are kept."""
        return self._n_kept

    @property
    def n_blocks(self) -> int:
        """Number of blocks; a block may have no pair that is kept."""
        return len(self._ends)

    def block(self, i: int) -> ParallelText:
        """Read the pairs of block i that are kept."""
        return ParallelText(self._lines(i, 0), self._lines(i, 1))

    @property
    def src(self) -> "Side":
        """The source lines."""
        return Side(self, 0)

    @property
    def tgt(self) -> "Side":
        """The target lines."""
        return Side(self, 1)

    def _lines(self, i: int, side: int) -> list[str]:
        first, begin = (int(self._ends[i - 1, place]) if i else 0 for place in (0, 1 + side))
        last, end = (int(self._ends[i, place]) for place in (0, 1 + side))
        with self.files[side].open("rb") as file:
            file.seek(begin)
            text = file.read(end - begin)
        if not begin:
            text = text.removeprefix(codecs.BOM_UTF8)
        lines = text.decode("utf-8").split("\n")  # with an empty one after a final "\n"
        return [lines[row].rstrip("\r") for row in np.flatnonzero(self._kept[first:last]).tolist()]


class Side:
    """The lines of one side, in order; may be iterated over repeatedly.

    Args:
        text: the pairs.
        side: 0 for the source, 1 for the target.
    """

    def __init__(self, text: TextBlocks, side: int) -> None:
        self._text = text
        self._side = side

    def __len__(self) -> int:
        """Number of lines."""
        return len(self._text)

    def __iter__(self) -> Iterator[str]:
        for i in range(self._text.n_blocks):
            yield from self._text._lines(i, self._side)


# Detection of repeated pairs in a text by 64-bit hashes, which does not need the text in memory.
#
# Two different pairs among ten million share a hash in one of 400,000 texts.


def pair_hashes(pairs: Iterable[Sequence[str]]) -> NDArray[np.uint64]:
    """Hash each pair of lines."""
    digests = (blake2b(f"{src}\n{tgt}".encode(), digest_size=8).digest() for src, tgt in pairs)
    return np.frombuffer(b"".join(digests), np.uint64)


def repeated(hashes: NDArray[np.uint64], among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark what occurs earlier too, where `among` marks both occurrences."""
    rows = np.flatnonzero(among)
    order = np.argsort(hashes[rows], kind="stable")
    ordered = hashes[rows[order]]
    again = rows[order[1:][ordered[1:] == ordered[:-1]]]
    marks = np.zeros(len(hashes), bool)
    marks[again] = True
    return marks


# Dropping training pairs of no use: empty, overlong, mismatched or repeated ones.
#
# Dev and test texts are never cleaned: a score counts every sentence.


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


# Keeping texts to train on and to score on apart: splitting one text into them, and adding to one of them.


def hold_out(files: ParallelFiles, n_dev: int, n_test: int) -> tuple[NDArray[np.bool_], list[int], list[int]]:
    """Choose pairs of a text by their hashes: the lowest are the dev text, the highest the test text.

    The choice is as good as random, and a text that grows keeps it: a new pair can only send a held-out one back to
    the rest, so that a run resumed on a grown text is never scored on what it has learned from. It is the same in both
    directions, so that neither of two opposite translators has learned from the other's test text. Held-out pairs are
    distinct and have text on both sides, and all copies of them, the other way round too, are removed from the rest.

    Args:
        files: the pairs to choose from
        n_dev: how many pairs go to dev
        n_test: how many pairs go to test

    Returns:
        whether each line belongs to the rest, the lines of dev, and those of test

    Raises:
        ValueError: there are too few distinct pairs
    """
    hashed, filled = [], []
    for block in read_blocks(files):
        pairs = [(src.strip(), tgt.strip()) for src, tgt in zip(block.src, block.tgt, strict=True)]
        hashed.append(pair_hashes(sorted(pair) for pair in pairs))
        filled.append(np.fromiter(map(all, pairs), bool, len(pairs)))
    hashes, has_text = np.concatenate(hashed), np.concatenate(filled)
    distinct = np.flatnonzero(has_text & ~repeated(hashes, has_text))
    if len(distinct) <= 2 * (n_dev + n_test):
        raise ValueError(
            f"held_out={max(n_dev, n_test)} is too many of {len(distinct):,} distinct pairs, "
            "most of which are needed for training: lower --data.held_out or give --data.dev_src and so on"
        )
    ranked = distinct[np.argsort(hashes[distinct])]
    dev, test = ranked[:n_dev], ranked[len(ranked) - n_test :]
    rest = ~np.isin(hashes, hashes[np.concatenate([dev, test])])
    return rest, dev.tolist(), test.tolist()


def write_split(
    files: ParallelFiles, rest: NDArray[np.bool_], held: Sequence[Sequence[int]], into: Sequence[ParallelFiles]
) -> None:
    """Write what `hold_out` chose: the rest into the first files, each held-out text into one of the following."""
    wanted = {row for rows in held for row in rows}
    found: dict[int, tuple[str, str]] = {}
    with ExitStack() as stack:
        outs = [_opened(stack, out) for out in into]
        for number, pair in enumerate(_pairs(files)):
            if rest[number]:
                _write(pair, outs[0])
            elif number in wanted:
                found[number] = pair
        for out_pair, rows in zip(outs[1:], held, strict=True):
            for row in rows:
                _write(found[row], out_pair)


def write_joined(
    files: ParallelFiles, more: ParallelFiles, held: Iterable[ParallelFiles], into: ParallelFiles
) -> tuple[int, int]:
    """Write a training text and more pairs after it, without those that have a held-out line on either side.

    A back-translated reference of a test text has another source, and would still be learned by heart.

    Returns:
        how many pairs were added, and how many left out

    Raises:
        ValueError: a file is missing, empty or not UTF-8, or the line counts differ
    """
    scored = {line.strip() for text in held for pair in _pairs(text) for line in pair}
    scored.discard("")
    n_added = n_left_out = 0
    with ExitStack() as stack:
        outs = _opened(stack, into)
        for pair in _pairs(files):
            _write(pair, outs)
        for pair in _pairs(more):
            if scored.isdisjoint(map(str.strip, pair)):
                _write(pair, outs)
                n_added += 1
            else:
                n_left_out += 1
    return n_added, n_left_out


def count_shared(files: ParallelFiles, held: ParallelFiles) -> int:
    """Count the pairs of a held-out text that a training text has, too, and whose scores therefore flatter a model.

    Raises:
        ValueError: a file is missing, empty or not UTF-8, or the line counts differ
    """
    scored = Counter((src.strip(), tgt.strip()) for src, tgt in _pairs(held))
    learned = {pair for src, tgt in _pairs(files) if (pair := (src.strip(), tgt.strip())) in scored}
    return sum(scored[pair] for pair in learned)


def _pairs(files: ParallelFiles) -> Iterator[tuple[str, str]]:
    for block in read_blocks(files):
        yield from zip(block.src, block.tgt, strict=True)


def _opened(stack: ExitStack, files: ParallelFiles) -> list[TextIO]:
    return [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in files]


def _write(pair: tuple[str, str], outs: Sequence[TextIO]) -> None:
    for out, line in zip(outs, pair, strict=True):
        out.write(line + "\n")
