"""Lines as they arrive in a stream, and the prompt at the terminal with its commands."""

import locale
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BufferedIOBase
from pathlib import Path
from typing import TypeVar

from config.reader import Scalar, fields_of, read_value
from utils.dataset.text import decoded_lines, open_text
from utils.search.searcher import Sampling
from utils.search.translator import Translator
from utils.terminal.option import SEARCH, ConfigT
from utils.terminal.output import notices
from utils.text.language import count_letters

X = TypeVar("X")
_MAX_BYTES = 2**18  # read at a time, and most that is looked at for letters
_ASCII = "ANSI_X3.4-1968"  # what the locale C calls it


def arriving_lines(
    file: BufferedIOBase, name: str, n_first: int, max_lines: int, as_is: bool = False
) -> Iterator[list[str]]:
    r"""Yield the lines of a UTF-8 stream as they arrive: together those that are there at once, but not too many.

    They are up to `n_first`, and then as many as there were before, up to `max_lines`: what becomes of the first is
    seen soon, and the longer a stream, the better its lines are batched. They are read as by `decoded_lines`. Those
    before one that is not UTF-8 come before its error.
    """
    n_before = 0
    ready: deque[bytes] = deque()  # what has been read, but not yet decoded
    lines = decoded_lines(_lines(file, ready), name, as_is)
    for first in lines:
        chunk = [first]
        try:
            while ready and len(chunk) < min(max(n_first, n_before), max_lines):
                chunk.append(next(lines))
        except ValueError:
            yield chunk
            raise
        n_before += len(chunk)
        yield chunk


def _lines(file: BufferedIOBase, ready: deque[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream; those that came with the same read wait in `ready`."""
    parts: list[bytes] = []  # of an unfinished line; joined only once, however long it gets
    while read := file.read1(_MAX_BYTES):
        *ends, rest = read.split(b"\n")
        for end in ends:
            ready.append(b"".join([*parts, end, b"\n"]))
            parts = []
        parts.append(rest)
        while ready:
            yield ready.popleft()
    if any(parts):
        yield b"".join(parts)


class Ahead(BufferedIOBase):
    """A stream whose beginning can be looked at, up to its first letters, and is still to be read."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file, self._seen = file, b""

    def beginning(self) -> str:
        """Return what comes first, as far as there are letters in it, which tell the language."""
        while not count_letters(text := self._seen.decode(errors="ignore"))[0] and len(self._seen) < _MAX_BYTES:
            if not (read := self._file.read1(_MAX_BYTES)):
                break
            self._seen += read
        return text

    def read1(self, size: int = -1) -> bytes:
        """Read what is there; first all that has been looked at."""
        seen, self._seen = self._seen, b""
        return seen or self._file.read1(size)


def count_lines(path: Path) -> int | None:
    """Count the lines of a file, and refuse it if one is not UTF-8; None for a pipe, which can be read only once."""
    if not path.is_file():
        return None
    with open_text(path) as file:
        return sum(1 for _ in decoded_lines(file, str(path)))


def lines_after(n: int, chunks: Iterable[list[X]]) -> Iterator[list[X]]:
    """Yield chunks without the first n lines of all."""
    for chunk in chunks:
        if rest := chunk[n:]:
            yield rest
        n -= min(n, len(chunk))


def paired(
    chunks: Iterable[list[str]], others: Iterator[str], names: tuple[str, str]
) -> Iterator[list[tuple[str, str]]]:
    """Pair each line of the chunks with the corresponding line of another stream; both must end together."""
    n_lines, (name, other) = 0, names
    for chunk in chunks:
        yield (pairs := list(zip(chunk, others, strict=False)))
        n_lines += len(pairs)
        if len(pairs) < len(chunk):
            raise ValueError(f"{other} ends after {n_lines:,} lines, {name} has more: give one line per line")
    if next(others, None) is not None:
        raise ValueError(f"{name} ends after {n_lines:,} lines, {other} has more: give one line per line")


def ask_for_lines() -> None:
    """Tell the user that input is expected, if standard input is a terminal."""
    if sys.stdin.isatty():
        print("type lines; Ctrl-D ends the input", file=sys.stderr)


# A prompt at the terminal, with a history that is kept between sessions.


@contextmanager
def kept_history() -> Iterator[None]:
    """Within the block, the arrow keys at `input` recall lines of earlier prompts; errors of the file are ignored.

    It is below $XDG_STATE_HOME (XDG Base Directory Specification). A user without a home folder has none.
    """
    import readline  # only here: it may write to the terminal

    with suppress(locale.Error):  # that is not installed, and taken as C
        locale.setlocale(locale.LC_CTYPE, "")
    if locale.nl_langinfo(locale.CODESET) == _ASCII:
        os.environ["LC_ALL"] = "C.UTF-8"  # readline asks for it at each line, and would take Japanese for commands
    readline.set_auto_history(True)
    readline.set_history_length(1000)
    with suppress(OSError, RuntimeError):
        readline.read_history_file(_history_file())
    try:
        yield
    finally:
        with suppress(OSError, RuntimeError):
            _history_file().parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(_history_file())


def _history_file() -> Path:
    root = os.environ.get("XDG_STATE_HOME")
    return (Path(root) if root else Path.home() / ".local" / "state") / "miyako" / "history"


def converse(conversation: "Conversation", title: str) -> None:
    """Answer typed lines until the user leaves."""
    print(f"{title}; :help lists the commands, Ctrl-D quits", file=sys.stderr)
    with kept_history(), suppress(EOFError):
        while not conversation.is_over:
            try:
                if (line := input("> ")).strip():
                    for shown in conversation.answer(line):
                        print(shown)
            except ValueError as error:
                print(error, file=sys.stderr)
        return
    print(file=sys.stderr)  # the shell's own prompt starts on a new line


HELP = """\
  :n N                 show the N best translations
  :beam N              beam size; 1 is greedy search
  :length_penalty A    larger values favour longer translations
  :prefix TEXT         start each translation with TEXT; without TEXT, no prefix
  :help                show this list
  :quit                leave; so does Ctrl-D"""


@dataclass
class Conversation:
    """Answers lines one by one; commands change the translator's search settings."""

    translator: Translator
    n_best: int = 1  # translations to show
    prefix: str = ""  # text that each translation starts with
    is_over: bool = False

    def answer(self, line: str) -> list[str]:
        """Return the lines to show."""
        if line.startswith(":"):
            name, _, value = line[1:].strip().partition(" ")
            return self._obey(name, value.strip())
        prefixes = [self.prefix] if self.prefix else None
        (translation,) = self.translator.translate([line], n_best=self.n_best, prefixes=prefixes)
        best = enumerate(translation.candidates, 1)
        ranked = [f"{rank:2}  {candidate.score:9.4f}  {candidate.text}" for rank, candidate in best]
        shown = ranked if self.n_best > 1 else [translation.text]
        return [*shown, *[f"({notice})" for notice in notices(translation).values()]]

    def _obey(self, name: str, value: str) -> list[str]:
        """Run a command and return the settings as they are now."""
        search, searcher = self.translator.search, self.translator.searcher
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
                if isinstance(searcher, Sampling):
                    sampling = searcher.sampling
                    self.n_best = _changed(sampling, "n_samples", name, value).n_samples
                    sampling = replace(sampling, n_samples=max(self.n_best, sampling.n_samples))
                    self.translator.searcher = replace(searcher, sampling=sampling)
                else:
                    self.n_best = _changed(search, "beam_size", name, value).beam_size
                    self.translator.search = replace(search, beam_size=max(self.n_best, search.beam_size))
            case "beam" | "length_penalty":
                search = self.translator.search = _changed(search, SEARCH[name], name, value)
                self.n_best = self.n_best if isinstance(searcher, Sampling) else min(self.n_best, search.beam_size)
            case _:
                raise ValueError(f"unknown command :{name}: see :help")
        return [self.settings()]

    def settings(self) -> str:
        """Return the settings in one line."""
        search = self.translator.search
        prefix = f", prefix {self.prefix!r}" if self.prefix else ""
        return f"n {self.n_best}, beam {search.beam_size}, length_penalty {search.length_penalty:g}{prefix}"


def _changed(config: ConfigT, field: str, command: str, value: str) -> ConfigT:
    """Return a config with one setting as a command gives it."""
    config_type: type = type(config)
    if not value:
        raise ValueError(f":{command} has no value: see :help")
    try:
        written = read_value(field, fields_of(config_type)[field], Scalar(value, quoted=True))
        return replace(config, **{field: written})
    except ValueError as error:  # it names the field
        raise ValueError(str(error).replace(f"{field}=", f":{command} ")) from None
