"""A prompt at the terminal, with a history that outlives it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MOST_LINES = 1000  # kept in the history


def history_file() -> Path | None:
    """Where the XDG Base Directory Specification wants a history: below $XDG_STATE_HOME; None: nobody is at home."""
    root = os.environ.get("XDG_STATE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".local" / "state") / "miyako" / "history"
    except RuntimeError:  # a user without a home, in a container say
        return None


@contextmanager
def kept_history(file: Path | None) -> Iterator[None]:
    """Inside, `input` has the lines of earlier prompts behind the arrow keys; what cannot be kept is not."""
    try:
        import readline
    except ImportError:  # Windows has none
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
    """Lines that are typed, until Ctrl-D; blank ones are passed over."""
    while True:
        try:
            line = input(prompt)
        except EOFError:
            print(file=sys.stderr)  # the shell's own prompt begins a line
            return
        if line.strip():
            yield line
