"""Lines as they arrive in a stream, and the prompt at the terminal with its commands."""

import os
import select
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import BufferedIOBase
from pathlib import Path

from utils.search.translator import Translator
from utils.terminal.output import notices, ranked_lines

_CHUNK = 2**16  # bytes read at a time: as much as a pipe holds


class LineStream:
    r"""The lines of a binary stream (a file, a pipe, bytes in memory), as they arrive; only "\n" ends a line."""

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
    """Yield lines as they arrive, at least one and at most `most` at a time; those before an invalid line first."""
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
    """Pair each line of the chunks with the corresponding line of another stream; both must end together."""
    n_lines = 0
    for chunk in chunks:
        found = list(zip(chunk, others, strict=False))
        yield found
        n_lines += len(found)
        if len(found) < len(chunk):
            raise ValueError(f"{names[1]} ends after {n_lines:,} lines, {names[0]} has more: give one line per line")
    if next(others, None) is not None:
        raise ValueError(f"{names[0]} ends after {n_lines:,} lines, {names[1]} has more: give one line per line")


def ask_for_lines() -> None:
    """Tell the user that input is expected, if standard input is a terminal."""
    if sys.stdin.isatty():
        print("type lines; Ctrl-D ends the input", file=sys.stderr)


# A prompt at the terminal, with a history that is kept between sessions.

_MOST_LINES = 1000  # kept in the history


def history_file() -> Path | None:
    """Return the history file below $XDG_STATE_HOME (XDG Base Directory Specification); None without a home folder."""
    root = os.environ.get("XDG_STATE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".local" / "state") / "miyako" / "history"
    except RuntimeError:  # a user without a home folder, e.g. in a container
        return None


@contextmanager
def kept_history(file: Path | None) -> Iterator[None]:
    """Within the block, the arrow keys at `input` recall lines of earlier prompts; errors of the file are ignored."""
    try:
        import readline
    except ImportError:  # not available on Windows
        yield
        return
    readline.set_auto_history(True)
    if file is None:
        yield
        return
    with suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.set_history_length(_MOST_LINES)
            readline.write_history_file(file)


def typed_lines(prompt: str = "> ") -> Iterator[str]:
    """Yield typed lines until Ctrl-D, skipping blank ones."""
    with suppress(EOFError):
        while True:
            if (line := input(prompt)).strip():
                yield line
    print(file=sys.stderr)  # the shell's own prompt starts on a new line


HELP = """\
  :n N                 show the N best translations
  :beam N              beam size; 1 is greedy search
  :length_penalty A    larger values favour longer translations
  :prefix TEXT         start each translation with TEXT; without TEXT, no prefix
  :help                show this list
  :quit                leave; so does Ctrl-D"""


class Conversation:
    """Answers lines one by one; commands change the translator's search settings.

    Args:
        translator: translates.
        n_best: number of translations to show.
        prefix: text that each translation starts with.
    """

    def __init__(self, translator: Translator, n_best: int = 1, prefix: str = "") -> None:
        self.translator = translator
        self.n_best = n_best
        self.prefix = prefix
        self.is_over = False

    def answer(self, line: str) -> list[str]:
        """Return the lines to show."""
        if line.startswith(":"):
            name, _, value = line[1:].strip().partition(" ")
            return self._obey(name, value.strip())
        prefixes = [self.prefix] if self.prefix else None
        (translation,) = self.translator.translate([line], n_best=self.n_best, prefixes=prefixes)
        shown = ranked_lines(translation) if self.n_best > 1 else [translation.text]
        return [*shown, *[f"({notice.text})" for notice in notices(translation)]]

    def _obey(self, name: str, value: str) -> list[str]:
        """Run a command and return the settings as they are now."""
        search, sampling = self.translator.search, self.translator.sampling
        match name:
            case "q" | "quit" | "exit":
                self.is_over = True
                return []
            case "h" | "help" | "?":
                return HELP.split("\n")
            case "prefix":
                self.translator.translate([""], prefixes=[value])  # refuses characters outside the vocabulary
                self.prefix = value
            case "n":
                n_best = _number(name, value)
                if sampling is not None:
                    self.translator.sampling = replace(sampling, n_samples=max(n_best, sampling.n_samples))
                else:
                    self.translator.search = replace(search, beam_size=max(n_best, search.beam_size))
                self.n_best = n_best
            case "beam":
                self.translator.search = replace(search, beam_size=_number(name, value))
                if sampling is None:
                    self.n_best = min(self.n_best, self.translator.search.beam_size)
            case "length_penalty":
                try:
                    alpha = float(value)
                except ValueError:
                    raise ValueError(f":length_penalty {value}: give a number, such as :length_penalty 1") from None
                self.translator.search = replace(search, length_penalty=alpha)
            case _:
                raise ValueError(f"unknown command :{name}: see :help")
        return [self.settings()]

    def settings(self) -> str:
        """Return the settings in one line."""
        search = self.translator.search
        parts = [f"n {self.n_best}", f"beam {search.beam_size}", f"length_penalty {search.length_penalty:g}"]
        return ", ".join([*parts, f"prefix {self.prefix!r}"] if self.prefix else parts)


def _number(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"{f':{name} {value}'.rstrip()}: give a whole number of at least 1, such as :{name} 4")
    return int(value)
