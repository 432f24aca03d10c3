"""The texts that a command is about: those of its arguments, or lines that come."""

import sys
from collections.abc import Iterator, Sequence

from utils.dataset.parallel_text import decoded_lines


def given_texts(texts: Sequence[str]) -> Iterator[str]:
    """These, or where there are none each line of standard input, as it comes.

    Raises:
        ValueError: a line is not UTF-8.
    """
    if texts:
        yield from texts
        return
    ask_for_lines()
    yield from decoded_lines(sys.stdin.buffer, "standard input")


def ask_for_lines() -> None:
    """Tell whoever sits at standard input that it is waited for."""
    if sys.stdin.isatty():
        print("type lines; Ctrl-D ends", file=sys.stderr)
