"""Reading a text and its translation, line by line: line i of one file is the translation of line i of the other."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class ParallelFiles(NamedTuple):
    """A text file and its translation."""

    src: Path
    tgt: Path


@dataclass(frozen=True)
class ParallelText:
    """Sentences and their translations: `src[i]` and `tgt[i]` are a pair.

    Raises:
        ValueError: the sides differ in length
    """

    src: list[str]
    tgt: list[str]

    def __post_init__(self) -> None:
        if len(self.src) != len(self.tgt):
            raise ValueError(f"{len(self.src):,} source lines but {len(self.tgt):,} target lines: not a pair each")

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, part: slice) -> "ParallelText":
        return ParallelText(self.src[part], self.tgt[part])


def decoded_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    r"""The lines of a binary UTF-8 stream as they come, without a byte order mark, "\n" and Windows' "\r".

    Only "\n" ends a line. `str.splitlines` also breaks at U+2028, U+0085 and others, which stand inside
    sentences of real corpora, and from there on every sentence would get its neighbour's translation.

    Args:
        file: lines of bytes, as iterating over a binary file gives them.
        name: of the stream, for errors.

    Raises:
        ValueError: invalid UTF-8
    """
    for number, line in enumerate(file, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            yield line.decode("utf-8").removesuffix("\n").rstrip("\r")
        except UnicodeDecodeError as error:
            byte = line[error.start]
            raise ValueError(f"{name}, line {number}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8") from None


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file.

    Raises:
        ValueError: no such file, invalid UTF-8, or nothing in it
    """
    if not path.is_file():
        raise ValueError(f"no such file: {path}")
    with path.open("rb") as file:
        lines = list(decoded_lines(file, str(path)))
    if not any(line.strip() for line in lines):
        raise ValueError(f"{path} holds no text")
    return lines


def read_parallel(files: ParallelFiles) -> ParallelText:
    """Read both files whole.

    Raises:
        ValueError: a file is missing, empty or not UTF-8, or the line counts differ
    """
    src, tgt = read_lines(files.src), read_lines(files.tgt)
    if len(src) != len(tgt):
        raise ValueError(
            f"{files.src} has {len(src):,} lines but {files.tgt} has {len(tgt):,}: "
            "line i of one must translate line i of the other"
        )
    return ParallelText(src, tgt)
