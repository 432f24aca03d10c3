"""What a command does when it is run inside the tests' own process."""

import re
from collections.abc import Callable

import pytest

from utils.command import run_command


class Outcome:
    """How a command ended, and what it said."""

    def __init__(self, status: object, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def complaint(self) -> str:
        """The one line that a mistake is answered with."""
        assert self.status == 2
        assert not self.out
        assert re.fullmatch(r"[a-z]+\.py( [a-z-]+)?: error: [^\n]+\n", self.err)
        return self.err


def outcome(program: str, main: Callable[[], None], captured: pytest.CaptureFixture[str]) -> Outcome:
    """Run a command to its end."""
    with pytest.raises(SystemExit) as ended:
        run_command(program, main)
    return Outcome(ended.value.code, *captured.readouterr())
