"""A prompt at the terminal, with a history that is kept between sessions."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
    while True:
        try:
            line = input(prompt)
        except EOFError:
            print(file=sys.stderr)  # the shell's own prompt starts on a new line
            return
        if line.strip():
            yield line
