"""The lines of a stream: one by one while they come slowly, many at once where many are there."""

import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path

_CHUNK = 2**16  # bytes at a time: as much as a pipe holds


class LineStream:
    r"""The lines of a binary stream, as they come; only "\n" ends one.

    Args:
        file: a file, a pipe, or bytes in memory.
    """

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._lines: deque[bytes] = deque()
        self._rest: list[bytes] = []  # of a line that has not ended; joined once, however long it gets
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while not self._lines:
            if self._ended:
                raise StopIteration
            self._read()
        return self._lines.popleft()

    def is_ready(self) -> bool:
        """Whether the next line, or the end, is there without waiting."""
        while not self._lines and not self._ended and self._has_more():
            self._read()
        return bool(self._lines) or self._ended

    def _read(self) -> None:
        """Take what is there; wait for something where nothing is."""
        chunk = self._file.read1(_CHUNK)
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._lines.append(b"".join([*self._rest, end, b"\n"]))
            self._rest.clear()
        if rest:
            self._rest.append(rest)
        if not chunk:
            self._ended = True
            if self._rest:
                self._lines.append(b"".join(self._rest))

    def _has_more(self) -> bool:
        try:
            number = self._file.fileno()
        except OSError:  # in memory
            return True
        try:
            return bool(select.select([number], [], [], 0)[0])
        except OSError:  # Windows can ask this of sockets alone
            return False


def in_lots(lines: Iterator[str], is_ready: Callable[[], bool], most: int) -> Iterator[list[str]]:
    """Lines as they come, at least one and at most so many at a time.

    What is wrong with a line is said when the lines before it have been handed on.
    """
    for first in lines:
        lot = [first]
        try:
            while len(lot) < most and is_ready() and (line := next(lines, None)) is not None:
                lot.append(line)
        except ValueError:
            yield lot
            raise
        yield lot


def count_lines(path: Path) -> int | None:
    """How many lines a file has; None for a pipe, which can be read only once."""
    if not path.is_file():
        return None
    n_lines, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            n_lines += chunk.count(b"\n")
            last = chunk[-1:]
    return n_lines + (last != b"\n")


def paired(lots: Iterable[list[str]], others: Iterator[str], names: tuple[str, str]) -> Iterator[list[tuple[str, str]]]:
    """Each line of the lots with the line of another stream that belongs to it.

    Raises:
        ValueError: one of them ends before the other.
    """
    n_lines = 0
    for lot in lots:
        found = list(zip(lot, others, strict=False))
        yield found
        n_lines += len(found)
        if len(found) < len(lot):
            raise ValueError(f"{names[1]} ends after {n_lines:,} lines, {names[0]} goes on: give a line for each line")
    if next(others, None) is not None:
        raise ValueError(f"{names[0]} ends after {n_lines:,} lines, {names[1]} goes on: give a line for each line")
