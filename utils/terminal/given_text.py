"""The texts that a command works on: its arguments, or lines of standard input."""

import sys
from collections.abc import Iterator, Sequence

from utils.dataset.text import decoded_lines


def given_texts(texts: Sequence[str]) -> Iterator[str]:
    """Yield these texts or, if there are none, each line of standard input as it arrives.

    Raises:
        ValueError: a line is not UTF-8.
    """
    if texts:
        yield from texts
        return
    ask_for_lines()
    yield from decoded_lines(sys.stdin.buffer, "standard input")


def ask_for_lines() -> None:
    """Tell the user that input is expected, if standard input is a terminal."""
    if sys.stdin.isatty():
        print("type lines; Ctrl-D ends the input", file=sys.stderr)
