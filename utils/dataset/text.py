"""Parallel text: reading it line by line, cleaning it, and holding some of it out.

Line i of one file is the translation of line i of the other. Texts are read as they come and never kept in memory:
of ten million pairs only numbers are, two lengths and a hash each.
"""

import codecs
import gzip
import lzma
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedIOBase
from itertools import chain, compress, islice, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from config.data import CleanConfig

X = TypeVar("X")
Pair = tuple[str, str]

BLOCK = 8192  # lines that are encoded together
FURTHER = "kept, further"  # how many pairs of further text `clean` has kept
# how files begin that are read through a decompressor, or are often given in place of UTF-8 text
_COMPRESSED: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\0": lzma.open,
}
_NO_UTF8 = {
    b"BZh": "compressed (bzip2): unpack it first",
    b"PK\x03\x04": "a zip archive: unpack it first",
    codecs.BOM_UTF16_LE: "UTF-16: save it as UTF-8",
    codecs.BOM_UTF16_BE: "UTF-16: save it as UTF-8",
}


_ISO_2022_JP = b"\x1b$"  # begins its kanji, in what is ASCII otherwise


class ParallelFiles(NamedTuple):
    """A text file and its translation."""

    src: Path
    tgt: Path

    @classmethod
    def of(cls, folder: Path, split: str) -> "ParallelFiles":
        """Return those of a split that are written into a folder."""
        return cls(folder / f"{split}.src", folder / f"{split}.tgt")


@dataclass(frozen=True)
class ParallelText:
    """Sentences and their translations: `src[i]` and `tgt[i]` are a pair."""

    src: list[str]
    tgt: list[str]

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, part: slice) -> "ParallelText":
        return ParallelText(self.src[part], self.tgt[part])


def decoded_lines(file: Iterable[bytes], name: str, as_is: bool = False) -> Iterator[str]:
    r"""Decode the lines of a binary UTF-8 stream as they come, without "\n", a byte order mark and Windows' "\r".

    Only "\n" ends a line. `str.splitlines` also breaks at U+2028, U+0085 and others, which occur inside sentences of
    real corpora; from there on, every sentence would be paired with its neighbour's translation. `as_is` keeps the mark
    and "\r".
    """
    for number, line in enumerate(file, start=1):
        if number == 1:
            line = first = line if as_is else line.removeprefix(codecs.BOM_UTF8)
        if _ISO_2022_JP in line:
            raise ValueError(f"{name}, line {number} is in ISO-2022-JP: save it as UTF-8")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            for magic, remedy in _NO_UTF8.items():
                if first.startswith(magic):
                    raise ValueError(f"{name} is {remedy}") from None
            byte = line[error.start]
            raise ValueError(f"{name}, line {number}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8") from None
        if "\0" in text:
            raise ValueError(f"{name}, line {number} has a NUL: is it UTF-16, or damaged? Save it as UTF-8")
        if number == 1 and not text.endswith("\n") and "\r" in text.rstrip("\r"):
            n_ends = text.count("\r")
            raise ValueError(f"{name} has {n_ends:,} line ends of CR alone, which end no line here: save it with LF")
        text = text.removesuffix("\n")
        yield text if as_is else text.rstrip("\r")


def require_text(path: Path, option: str = "") -> None:
    """Refuse what can have no text, given by this option: it is not there, or is a folder."""
    if not path.exists() or path.is_dir():
        why = "a folder, not a file" if path.is_dir() else "no such file"
        why = "standard input is called /dev/stdin here, not" if str(path) == "-" and not option else why
        raise ValueError(f"{option}={path}: {why}" if option else f"{why}: {path}")


@contextmanager
def open_text(path: Path) -> Iterator[BufferedIOBase]:
    """Open a file, a pipe or a compressed file (gzip, xz) to read the bytes of its text."""
    require_text(path)
    with path.open("rb") as file:
        begin = file.peek(6)
        opened = next((opened for magic, opened in _COMPRESSED.items() if begin.startswith(magic)), None)
        if opened is None:
            yield file
            return
        try:
            with opened(file) as unpacked:
                yield unpacked
        except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
            raise ValueError(f"{path} is compressed, and damaged or truncated ({error}): get it again") from error


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text; one without any is refused at its end."""
    has_text = False
    with open_text(path) as file:
        for line in decoded_lines(file, str(path)):
            has_text = has_text or bool(line.strip())
            yield line
    if not has_text:
        raise ValueError(f"{path} holds no text")


class TextLines:
    """The lines of a UTF-8 file, which may be iterated over repeatedly and are not kept in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._n_lines = sum(1 for _ in lines_of(path))

    def __len__(self) -> int:
        return self._n_lines

    def __iter__(self) -> Iterator[str]:
        return lines_of(self._path)


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 file."""
    return list(lines_of(path))


def read_pairs(files: ParallelFiles) -> Iterator[Pair]:
    """Yield the pairs of two files; different numbers of lines are refused at the end."""
    n_src = n_tgt = 0
    for src, tgt in zip_longest(*map(lines_of, files)):
        n_src, n_tgt = n_src + (src is not None), n_tgt + (tgt is not None)
        if n_src == n_tgt:
            yield src, tgt
    if n_src != n_tgt:
        raise ValueError(
            f"{files.src} has {n_src:,} lines but {files.tgt} has {n_tgt:,}: "
            "line i of one must translate line i of the other"
        )


def read_parallel(files: ParallelFiles, n: int | None = None) -> ParallelText:
    """Read both files whole, or their first n lines."""
    pairs = list(islice(read_pairs(files), n))
    return ParallelText([src for src, _ in pairs], [tgt for _, tgt in pairs])


def in_blocks(items: Iterable[X]) -> Iterator[list[X]]:
    """Yield the items in lists of `BLOCK`."""
    rest = iter(items)
    while block := list(islice(rest, BLOCK)):
        yield block


def write_pairs(files: ParallelFiles, pairs: Iterable[Pair]) -> None:
    """Write pairs to two new files."""
    with (
        files.src.open("w", encoding="utf-8", newline="\n") as src,
        files.tgt.open("w", encoding="utf-8", newline="\n") as tgt,
    ):
        for pair in pairs:
            src.write(pair[0] + "\n")
            tgt.write(pair[1] + "\n")


def line_hash(*lines: str) -> int:
    """Hash a line or a pair to 64 bits: two different ones of ten million share a hash in one of 400,000 texts."""
    return int.from_bytes(blake2b("\n".join(lines).encode(), digest_size=8).digest(), "little")


def repeated(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Mark what occurs earlier, too."""
    marks = np.ones(len(hashes), bool)
    marks[np.unique(hashes, return_index=True)[1]] = False
    return marks


# Cleaning: training pairs of no use are dropped. Dev and test texts are never cleaned: a score counts every sentence.


def clean(
    files: ParallelFiles,
    config: CleanConfig,
    into: ParallelFiles,
    n_further: int = 0,
    change: Callable[[Pair], Pair] = lambda pair: pair,
) -> dict[str, int]:
    """Write the pairs that `config` keeps, in their order; return how many each rule dropped, and how many are kept.

    A pair counts for the first rule that applies. The last `n_further` pairs are further text, which `max_pairs` does
    not count and which are counted apart. The text is read twice: for numbers about its pairs, and to write what is
    kept, as `change` returns it.
    """
    lengths, hashes = (array("i"), array("i")), array("Q")
    for pair in read_pairs(files):
        for side, sentence in zip(lengths, pair, strict=True):
            side.append(0 if sentence.isspace() else len(sentence))
        if config.drop_duplicates:
            hashes.append(line_hash(*pair))
    src, tgt = (np.frombuffer(side, np.int32) for side in lengths)
    keep, dropped = np.ones(len(src), bool), {}

    def drop(rule: str, hit: NDArray[np.bool_]) -> None:
        hit = hit & keep
        dropped[rule] = int(hit.sum())
        keep[hit] = False

    drop("empty", (src == 0) | (tgt == 0))
    if config.max_chars is not None:
        drop("too long", np.maximum(src, tgt) > config.max_chars)
    if config.max_length_ratio is not None and keep.any():
        off = np.log(np.maximum(tgt, 1) / np.maximum(src, 1))
        off = np.abs(off - np.median(off[keep]))
        # the slack makes both directions agree on a ratio that is exactly at the bound
        drop("length ratio", off > np.log(config.max_length_ratio) + 1e-9)
    if config.drop_duplicates:
        drop("duplicate", repeated(np.frombuffer(hashes, np.uint64)))
    is_further = np.arange(len(keep)) >= len(keep) - n_further
    if config.max_pairs is not None:
        drop("over max_pairs", (keep.cumsum() > config.max_pairs) & ~is_further)
    if not keep.any():
        counts = ", ".join(f"{rule} {count:,}" for rule, count in dropped.items())
        raise ValueError(f"cleaning leaves none of {len(keep):,} pairs ({counts}): loosen --data.clean")
    write_pairs(into, map(change, compress(read_pairs(files), keep)))
    kept = {"kept": int((keep & ~is_further).sum()), FURTHER: int((keep & is_further).sum())}
    return dropped | (kept if n_further else {"kept": kept["kept"]})


# Texts to train on and to score on: splitting one text into them, and adding to one of them.


def hold_out(pairs: Iterable[Pair], n_dev: int, n_test: int) -> tuple[NDArray[np.bool_], dict[str, list[int]]]:
    """Choose pairs of a text by their hashes: the lowest are the dev text, the highest the test text.

    The choice is as good as random, and a text that grows keeps it: a new pair can only send a held-out one back to
    the rest, so that a run resumed on a grown text is never scored on a pair that it has learned from, though maybe
    on another pair with one side of such a pair. It is the same in both directions, so that neither of two opposite
    translators has learned from the other's test text. Held-out pairs are distinct and have text on both sides.
    Every pair that has a line of them on either side is removed from the rest: another translation of a sentence,
    too, would have been learned by heart.
    What is returned: whether each line belongs to the rest, and the lines of dev and test, as far as there are any.
    """
    numbers, lines, filled = array("Q"), array("Q"), array("b")
    for pair in pairs:
        src, tgt = sorted(sentence.strip() for sentence in pair)
        numbers.append(line_hash(src, tgt))
        lines.extend((line_hash(src), line_hash(tgt)))
        filled.append(bool(src and tgt))
    hashes, has_text = np.frombuffer(numbers, np.uint64), np.frombuffer(filled, bool)
    sides = np.frombuffer(lines, np.uint64).reshape(-1, 2)
    distinct = np.flatnonzero(has_text & ~repeated(hashes))
    if len(distinct) <= 2 * (n_dev + n_test):
        raise ValueError(
            f"held_out={max(n_dev, n_test)} is too many of {len(distinct):,} distinct pairs, "
            "most of which are needed for training: lower --data.held_out or give --data.dev_src and so on"
        )
    ranked = distinct[np.argsort(hashes[distinct])]
    dev, test = ranked[:n_dev], ranked[len(ranked) - n_test :]
    rest = ~np.any(np.isin(sides, sides[np.concatenate([dev, test])]), axis=1)
    if not (rest & has_text).any():
        raise ValueError(
            f"held_out={max(n_dev, n_test)} leaves no pair to train on without a line of the dev or test text: "
            "lower --data.held_out or give --data.dev_src and so on"
        )
    return rest, {split: rows.tolist() for split, rows in (("dev", dev), ("test", test)) if len(rows)}


def write_split(
    files: ParallelFiles, rest: NDArray[np.bool_], held_out: Mapping[str, Sequence[int]], folder: Path
) -> None:
    """Write what `hold_out` chose into a folder: the rest as train, the held-out texts by their names."""
    write_pairs(ParallelFiles.of(folder, "train"), compress(read_pairs(files), rest))
    rows = set(chain.from_iterable(held_out.values()))
    pairs = {row: pair for row, pair in enumerate(read_pairs(files)) if row in rows}
    for split, of_split in held_out.items():
        write_pairs(ParallelFiles.of(folder, split), (pairs[row] for row in of_split))


def shares_no_line(held_out: Iterable[Pair]) -> Callable[[Pair], bool]:
    """Return a function that tells whether a pair has no line of these pairs on either side.

    A back-translated reference of a test text has another source, and would still be learned by heart.
    """
    scored = {line.strip() for pair in held_out for line in pair} - {""}
    return lambda pair: scored.isdisjoint(map(str.strip, pair))


def write_joined(
    files: ParallelFiles, further: ParallelFiles, held_out: Iterable[ParallelFiles], into: ParallelFiles
) -> tuple[int, int]:
    """Write a training text and further pairs after it, without those that have a held-out line on either side.

    The numbers of pairs that were added and left out are returned.
    """
    is_kept = shares_no_line(chain.from_iterable(map(read_pairs, held_out)))
    keep = np.fromiter(map(is_kept, read_pairs(further)), bool)
    write_pairs(into, chain(read_pairs(files), compress(read_pairs(further), keep)))
    return int(keep.sum()), int((~keep).sum())
