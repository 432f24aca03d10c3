"""Reading a text and its translation, line by line: line i of one file is the translation of line i of the other."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

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
