"""What a verb of evaluate.py is, and what they say alike."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jsonargparse import Namespace

from utils.command_line import Parser
from utils.device import Device


class Verb(NamedTuple):
    """A sub-command: how it is called, what it is for, its options, what it does."""

    usage: str
    help: str
    add_options: Callable[[Parser], None]
    act: Callable[[Namespace], None]


def run_text_options(parser: Parser, act: str, split: str | None = None) -> None:
    """Which run, how much of which text of its corpus, and where.

    Args:
        parser: of the verb.
        act: what is done to the sentences.
        split: the text that is taken where none is asked for; None: the verb has texts of its own.
    """
    parser.add_argument("run", nargs="?", type=Path, help="folder of a run (default: the one trained last)")
    if split is not None:
        parser.add_argument("--split", choices=["dev", "test"], default=split, help="which text of the run's corpus")
    parser.add_argument("--limit", type=int, metavar="N", help=f"{act} the first sentences only, this many")
    parser.add_argument("--device", type=Device, default="auto", help="cpu, cuda, or whichever is there")


def warn(message: str) -> None:
    """Say on standard error what a reader of the score must know."""
    print(f"evaluate.py: warning: {message}", file=sys.stderr)
