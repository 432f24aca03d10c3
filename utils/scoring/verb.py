"""The verbs of evaluate.py, and what they share."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jsonargparse import Namespace

from utils.command_line import Parser
from utils.device import Device


class Verb(NamedTuple):
    """A sub-command: its usage, one-line help, options and action."""

    usage: str
    help: str
    add_options: Callable[[Parser], None]
    act: Callable[[Namespace], None]


def run_text_options(parser: Parser, act: str, split: str | None = None) -> None:
    """Add the options that choose the run, the text of its corpus, and the device.

    Args:
        parser: parser of the verb.
        act: what the verb does with the sentences, for the help text.
        split: default split; None: the verb chooses its texts itself.
    """
    parser.add_argument("run", nargs="?", type=Path, help="folder of a run (default: the one trained last)")
    if split is not None:
        parser.add_argument("--split", choices=["dev", "test"], default=split, help="text of the run's corpus")
    parser.add_argument("--limit", type=int, metavar="N", help=f"{act} only the first N sentences")
    parser.add_argument("--device", type=Device, default="auto", help="cpu, cuda, or auto: cuda if available")


def warn(message: str) -> None:
    """Print a warning for the reader of a score on standard error."""
    print(f"evaluate.py: warning: {message}", file=sys.stderr)
