"""A file of translations that is not finished: it is kept beside the place of the finished one, to be gone on with."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from utils.file import atomic_file, from_here, locked, read_json, sync, write_json


@dataclass
class Unfinished:
    """Output for the first lines of an input, in `OUTPUT.part`; `OUTPUT.part.json` says for which, by which command."""

    path: Path
    command: Mapping[str, str]  # what the output depends on, by option
    n_lines: int = 0  # of the input
    n_bytes: int = 0  # of the output for them; what a killed process has written behind it does not count
    _read: Any = field(default_factory=hashlib.sha256)  # of those lines

    def __post_init__(self) -> None:
        self.state = self.path.with_name(f"{self.path.name}.json")

    def go_on(self, lines: Iterable[str], log: Callable[[str], object]) -> None:
        """Go on from what is there, if this command has written it for this input; say so, or why not."""
        if not self.state.is_file():
            return
        begun, read = read_json(self.state), hashlib.sha256()
        for line in islice(lines, begun["lines"]):
            read.update(f"{line}\n".encode())
        now = {**self.command, "--input": read.hexdigest()}
        if changed := [option for option in now if begun["command"].get(option) != now[option]]:
            log(f"{self.path} was written with another {', '.join(changed)}: beginning anew")
        elif self.path.stat().st_size < begun["bytes"]:
            log(f"{self.path} has lost its end: beginning anew")
        else:
            self.n_lines, self.n_bytes, self._read = begun["lines"], begun["bytes"], read
            log(f"going on from line {self.n_lines + 1:,}: the lines before it are in {self.path}")

    def note(self, lines: Sequence[str]) -> None:
        """Note that the file has the output for these lines, too."""
        self._read.update("".join(f"{line}\n" for line in lines).encode())
        self.n_lines += len(lines)
        command = {**self.command, "--input": self._read.hexdigest()}
        sync(self.path)
        write_json(self.state, {"lines": self.n_lines, "bytes": self.path.stat().st_size, "command": command})


@contextmanager
def unfinished(
    output: Path, lines: Iterable[str], command: Mapping[str, str], log: Callable[[str], object]
) -> Iterator[tuple[TextIO, Unfinished]]:
    """Yield a file to write to, and what it has already; it becomes `output` if the block succeeds, and else stays.

    It is gone on with if an equal command, what the output depends on by option, has begun it for the same lines.
    """
    output = output.resolve()
    part = Unfinished(from_here(output.with_name(f"{output.name}.part")), command)
    taken = f"another process writes {part.path}: wait for its end, or give another --output"
    with atomic_file(output, draft=part.path), locked(part.path, taken):
        part.go_on(lines, log)
        if not part.n_lines:
            part.state.unlink(missing_ok=True)
        with part.path.open("r+", encoding="utf-8", newline="\n") as file:
            file.truncate(part.n_bytes)
            file.seek(part.n_bytes)
            try:
                yield file, part
            except BaseException:
                if part.n_lines:
                    log(f"{part.path} has the first {part.n_lines:,} lines: the same command goes on from there")
                else:
                    part.path.unlink()
                raise
    part.state.unlink(missing_ok=True)
