"""What all commands share: one-line errors that name the remedy, exit statuses, plain tables and durations."""

import difflib
import os
import re
import shlex
import signal
import sys
import unicodedata
from argparse import ArgumentError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from jsonargparse import ArgumentParser, Namespace
from tqdm import tqdm

from const.path import ROOT
from utils.device import is_out_of_memory
from utils.file import from_here

# What all commands share: one-line errors that name the remedy, exit statuses that a shell understands.

INTERRUPTED, TERMINATED = 130, 143  # 128 + SIGINT, 128 + SIGTERM, as shells count them


def fail(program: str, message: str) -> NoReturn:
    """Print one line on standard error and exit with status 2."""
    print(f"{program}: error: {message}", file=sys.stderr)
    sys.exit(2)


def hyphenated(argument: str) -> str:
    """Return an argument with hyphens between the words of an option's name, by which two spellings are compared."""
    option, equals, value = argument.partition("=")
    return option.replace("_", "-") + equals + value if option.startswith("--") else argument


class Parser(ArgumentParser):
    """A parser whose errors are one line and suggest the nearest option, and whose options may be typed with - or _."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Exit with status 2, or raise an ArgumentError if the parser was created not to exit."""
        if not self.exit_on_error:
            raise ArgumentError(None, message) from ex
        fail(self.prog, self.explain(message))

    def _get_option_tuples(self, option_string: str) -> list[Any]:  # noqa: ARG002 (argparse's signature)
        """Allow no abbreviated options: `--resum` taken as `--resume` would be a surprise."""
        return []

    def _parse_optional(self, arg_string: str) -> Any:
        """Understand `--length-penalty` as `--length_penalty`, and the other way round."""
        option, equals, value = arg_string.partition("=")
        if option.startswith("--"):
            alike = (known for known in self._option_string_actions if hyphenated(known) == hyphenated(option))
            nested = "--" + option.removeprefix("--").replace("-", "_")  # of a group that may be null: not yet known
            arg_string = next(alike, nested if "." in option else option) + equals + value
        return super()._parse_optional(arg_string)  # type: ignore[no-untyped-call]

    def _takes_texts(self) -> bool:
        return any(action.nargs == "*" and not action.option_strings for action in self._actions)

    def explain(self, message: str) -> str:
        """Return the message on one line, with the option that was probably meant."""
        line = re.sub(r"\s+", " ", message.strip())
        if value := _explained_value(line):
            return value
        if pair := re.search(r"Group '(.+?)' does not accept option '(.+?)'", line):
            wrong = f"{pair[1]}.{pair[2]}"
        elif (single := re.search(r"[Uu]nrecognized arguments: --(\S+)|Option '(.+?)' is not accepted", line)) is None:
            if re.search(r"[Uu]nrecognized arguments: -", line) and self._takes_texts():
                line += ": put -- before a text that begins with -"
            return line
        else:
            wrong = single[1] or single[2]
        known = [option.removeprefix("--") for action in self._actions for option in action.option_strings]
        near = difflib.get_close_matches(wrong.split("=")[0], known, n=1, cutoff=0.5)
        remedy = f"did you mean --{near[0]}?" if near else "see --help"
        return f"unknown option {wrong}: {remedy}"


def _explained_value(line: str) -> str | None:
    """Return jsonargparse's message about a value of the wrong type in plain words; None for other messages."""
    message = re.search(r'Parser key "(.+?)": (.+)$', line)
    given = message and re.search(r"(?:Given value: |Got value: (?!.*Given value: ))(.+)$", message[2])
    if message is None or given is None:
        return None
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "NoneType": "null"}
    key, value = message[1], given[1]
    if within := re.fullmatch(r"NestedArg\(key='(.+)', val='(.*)'\)", value):  # of a group that may be null
        key, value = f"{key}.{within[1]}", within[2]
    wanted: list[str] = []
    for kind, choices in re.findall(r"Expected a (?:<class '(\w+)'>|typing\.Literal\[(.*?)\])", message[2]):
        if kind == "NoneType" and within:
            continue
        if kind and kind not in words:
            return None
        wanted += [words[kind]] if kind else [choice.strip("' ") for choice in choices.split(",")]
    if not wanted:
        return None
    if wanted == ["null"]:
        return f"{key} is a group of settings, not {value}: give settings below it, or null"
    *others, last = dict.fromkeys(wanted)
    return f"{key}={value}: give {', '.join(others)}{' or ' if others else ''}{last}"


def typed_command(program: str) -> str:
    """Return what starts a program of this project from here, without Poetry on the path or an active environment."""
    return shlex.join(str(from_here(path)) for path in (Path(sys.executable), ROOT / program))


def require_options_at_least(arguments: Namespace, **least: int) -> None:
    """Refuse options whose values are below a minimum.

    Args:
        arguments: parsed; None where an option is not given; a list is checked value by value.
        least: minimum of each option.

    Raises:
        ValueError: when a value is below its minimum.
    """
    for option, fewest in least.items():
        given = arguments[option]
        for value in given if isinstance(given, list) else [given]:
            if value is not None and value < fewest:
                raise ValueError(f"--{option} {value}: give {fewest:,} or more")


@contextmanager
def needing_group(program: str, group: str) -> Iterator[None]:
    """Around imports of packages from an optional dependency group: exit with one line when they are not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        fail(program, f"{error.name} is not installed: poetry install --with {group}")


@contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """Within the block, SIGTERM raises SystemExit instead of killing, so that `finally` clauses run."""

    def end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 (the signature is Python's)
        sys.exit(TERMINATED)

    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_command(program: str, main: Callable[[], None]) -> NoReturn:
    """Run a command and exit: 0 on success, 2 after a user's mistake, 130 after Ctrl-C; without a traceback.

    `python -X dev train.py ...` shows the traceback of a mistake, too.

    SIGTERM ends it like Ctrl-C, with 143, so that nothing half-written stays; a command may handle it otherwise.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # `translate.py <&-`: closed by the caller
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 (open to the end)
    try:
        with ending_at_sigterm():
            main()
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # `translate.py ... | head` has read enough
        sys.stderr.close()
        sys.exit(0)
    except (ValueError, OSError) as error:
        if sys.flags.dev_mode:
            raise
        fail(program, " ".join(str(error).split()))
    except (MemoryError, RuntimeError) as error:
        if sys.flags.dev_mode or not is_out_of_memory(error):
            raise
        said = next(iter(str(error).splitlines()), type(error).__name__)
        fail(program, f"out of memory ({said}): free some, or ask for less at a time")
    sys.exit(0)


# Lines of output while a progress bar is shown.


def print_above_bars(text: str) -> None:
    """Print to standard output immediately, above any progress bars on the same terminal."""
    tqdm.write(text)
    sys.stdout.flush()


# Durations in readable units.


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes, hours or days, whichever reads best."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


# Plain text in columns for a terminal, where Japanese characters are two columns wide.


def columns_of(text: str) -> int:
    """Return how many terminal columns a text takes (Unicode Standard Annex #11)."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def aligned(rows: Sequence[Sequence[str]], alignment: str, indent: str = "  ") -> list[str]:
    """Return a line for each row, with the cells aligned in columns.

    Args:
        rows: each with as many cells as `alignment` has letters.
        alignment: `l` or `r` for each column.
        indent: text that each line starts with.
    """
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for cell, width, side in zip(row, widths, alignment, strict=True):
            space = " " * (width - columns_of(cell))
            cells.append(space + cell if side == "r" else cell + space)
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def wrapped(text: str, width: int) -> list[str]:
    """Wrap a text into lines of at most `width` columns, where `width` is 2 or more.

    A line is broken after the last space in its second half or, if there is none, between two characters. Control
    characters, which a terminal would obey instead of showing, become spaces.
    """
    lines, line = [], ""
    for character in text:
        line += character if character.isprintable() else " "
        if columns_of(line.rstrip()) > width:
            cut = line.rfind(" ", len(line) // 2, -1) + 1 or len(line) - 1
            lines.append(line[:cut].rstrip())
            line = line[cut:]
    return [*lines, line.rstrip()]


def bar(share: float, length: int = 24) -> str:
    """Return a bar whose length is a share, 0 to 1, of the full length; at least one mark if the share is not 0."""
    return "#" * (max(1, round(share * length)) if share > 0 else 0)


# Single-file web pages from templates.


def page_template(file: Path) -> Template:
    """Load a template that escapes the values it is given, and raises an error if one is missing."""
    environment = Environment(
        loader=FileSystemLoader(file.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(file.name)
