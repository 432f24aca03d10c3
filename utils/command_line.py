"""What all commands share: errors of one line that name the remedy, exit statuses that a shell understands."""

import difflib
import os
import re
import signal
import sys
from argparse import ArgumentError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace

INTERRUPTED, TERMINATED = 130, 143  # 128 + SIGINT, 128 + SIGTERM, as shells count them


def fail(program: str, message: str) -> NoReturn:
    """Print one line on standard error and exit with status 2."""
    print(f"{program}: error: {message}", file=sys.stderr)
    sys.exit(2)


class Parser(ArgumentParser):
    """A parser whose errors are one line and name the nearest option."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Exit with status 2, or, where the parser was told not to exit, raise an ArgumentError."""
        if not self.exit_on_error:
            raise ArgumentError(None, message) from ex
        fail(self.prog, self.explain(message))

    def _get_option_tuples(self, option_string: str) -> list[Any]:  # noqa: ARG002 (argparse's signature)
        """No option may be abbreviated: a `--resum` that trains would surprise."""
        return []

    def _takes_texts(self) -> bool:
        return any(action.nargs == "*" and not action.option_strings for action in self._actions)

    def explain(self, message: str) -> str:
        """The message on one line, with the option that was probably meant."""
        line = re.sub(r"\s+", " ", message.strip())
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


def require_options_at_least(arguments: Namespace, **least: int) -> None:
    """Refuse options that are given with less than makes sense.

    Args:
        arguments: None where an option is not given; of several values each one counts.
        least: of each option.

    Raises:
        ValueError: one is below it.
    """
    for option, fewest in least.items():
        given = arguments[option]
        for value in given if isinstance(given, list) else [given]:
            if value is not None and value < fewest:
                raise ValueError(f"--{option} {value}: give {fewest:,} or more")


@contextmanager
def needing_group(program: str, group: str) -> Iterator[None]:
    """Inside stand imports of packages that only one group of dependencies has; one line when it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        fail(program, f"{error.name} is not installed: poetry install --with {group}")


@contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """Inside, SIGTERM raises SystemExit where it would kill: what stands in `finally` is done."""

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
    """Run a command and exit: 0 when it went well, 2 after a user's mistake, 130 after Ctrl-C; no traceback.

    SIGTERM ends it like Ctrl-C, with 143, so that nothing half-written stays; a command may handle it otherwise.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # `translate.py <&-`: closed by who called
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
        fail(program, " ".join(str(error).split()))
    sys.exit(0)
