"""What a reader should know about lines: the first few of a kind one by one, the rest as a number."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

_SHOWN = 10  # of a kind; a large file of another sort of text has one for every line


class Notice(NamedTuple):
    """A notice about one line, and its kind, by which it is counted."""

    kind: str
    text: str


class NoticeBoard:
    """Says notices as they come, but only the first of each kind.

    Args:
        say: called with what is to be said, without line feed.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._counts: Counter[str] = Counter()

    def post(self, number: int, notices: Iterable[Notice]) -> None:
        """Say the notices about a line.

        Args:
            number: of the line.
            notices: what to say about it.
        """
        for notice in notices:
            self._counts[notice.kind] += 1
            if self._counts[notice.kind] <= _SHOWN:
                self._say(f"line {number}: {notice.text}")

    def conclude(self) -> None:
        """Say how many notices of each kind were left out."""
        for kind, count in self._counts.items():
            if count > _SHOWN:
                left_out = "1 more line" if count == _SHOWN + 1 else f"{count - _SHOWN:,} more lines"
                self._say(f"{left_out}: {kind}; --format jsonl tells which")
