"""The lines of a stream: one by one while they arrive slowly, many at a time if many are available."""

import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path

_CHUNK = 2**16  # bytes read at a time: as much as a pipe holds


class LineStream:
    r"""The lines of a binary stream, as they arrive; only "\n" ends a line.

    Args:
        file: a file, a pipe, or bytes in memory.
    """

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._lines: deque[bytes] = deque()
        self._rest: list[bytes] = []  # of an unfinished line; joined only once, however long it gets
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
        """Return whether the next line, or the end, is available without waiting."""
        while not self._lines and not self._ended and self._has_more():
            self._read()
        return bool(self._lines) or self._ended

    def _read(self) -> None:
        """Read what is available; wait if nothing is."""
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
        except OSError:  # Windows supports this for sockets only
            return False


def in_chunks(lines: Iterator[str], is_ready: Callable[[], bool], most: int) -> Iterator[list[str]]:
    """Yield lines as they arrive, at least one and at most `most` at a time.

    An invalid line raises its error only after the lines before it have been yielded.
    """
    for first in lines:
        chunk = [first]
        try:
            while len(chunk) < most and is_ready() and (line := next(lines, None)) is not None:
                chunk.append(line)
        except ValueError:
            yield chunk
            raise
        yield chunk


def count_lines(path: Path) -> int | None:
    """Count the lines of a file; None for a pipe, which can be read only once."""
    if not path.is_file():
        return None
    n_lines, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            n_lines += chunk.count(b"\n")
            last = chunk[-1:]
    return n_lines + (last != b"\n")


def paired(
    chunks: Iterable[list[str]], others: Iterator[str], names: tuple[str, str]
) -> Iterator[list[tuple[str, str]]]:
    """Pair each line of the chunks with the corresponding line of another stream.

    Raises:
        ValueError: one stream ends before the other.
    """
    n_lines = 0
    for chunk in chunks:
        found = list(zip(chunk, others, strict=False))
        yield found
        n_lines += len(found)
        if len(found) < len(chunk):
            raise ValueError(f"{names[1]} ends after {n_lines:,} lines, {names[0]} has more: give one line per line")
    if next(others, None) is not None:
        raise ValueError(f"{names[0]} ends after {n_lines:,} lines, {names[1]} has more: give one line per line")
