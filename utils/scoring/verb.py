"""What a verb of evaluate.py is, and what they say alike."""

import sys
from collections.abc import Callable
from typing import NamedTuple

from jsonargparse import Namespace

from utils.command_line import Parser


class Verb(NamedTuple):
    """A sub-command: how it is called, what it is for, its options, what it does."""

    usage: str
    help: str
    add_options: Callable[[Parser], None]
    act: Callable[[Namespace], None]


def warn(message: str) -> None:
    """Say on standard error what a reader of the score must know."""
    print(f"evaluate.py: warning: {message}", file=sys.stderr)


def refuse_limit(limit: int | None) -> None:
    """An error where no sentence would be left."""
    if limit is not None and limit < 1:
        raise ValueError(f"--limit {limit}: give 1 or more, or leave it out")
