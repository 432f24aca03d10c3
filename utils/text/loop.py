"""Loops: what a model is led into by a source unlike those that it has learned from, the same again and again."""

import re

OFTEN = 2  # what stands in a row more often, in a translation and not in its source, is a loop
EXTRA = 8  # characters that the repetitions of a loop have at least
_LONGEST = 50  # characters of what is repeated
_REPEATED = re.compile(rf"(?s)(.{{1,{_LONGEST}}}?)\1{{2,}}")
_ZEROS = re.compile(r"[0,.]*0[0,.]*")  # of 1,000,000,000


def _rows(text: str, extra: int) -> list[re.Match[str]]:
    """Return what stands in a row three times or more, whose repetitions have `extra` characters, from the left."""
    rows = (row for row in _REPEATED.finditer(text) if not _ZEROS.fullmatch(row[1]))
    return [row for row in rows if len(row[0]) - len(row[1]) >= extra]


def _times(row: re.Match[str]) -> int:
    return len(row[0]) // len(row[1])


def repetitions(text: str, extra: int = 1) -> int:
    """Return how often something stands in a row, at most; 1: nothing does three times."""
    return max(map(_times, _rows(text, extra)), default=1)


def is_loop(text: str, source: str) -> bool:
    """Return whether a translation repeats something again and again, and more often than its source does."""
    places = dict[str, int]()  # where each part was last
    for place in range(len(text) - EXTRA + 1):  # in most texts nothing is soon there again, which is found out quickly
        part = text[place : place + EXTRA]
        if place - places.get(part, -_LONGEST - 1) <= _LONGEST:
            return (times := repetitions(text, EXTRA)) > OFTEN and times > repetitions(source)
        places[part] = place
    return False


def end_of_first(text: str, source: str) -> int | None:
    """Return where a loop has said once what it repeats, or as often as the source repeats something; None: no loop."""
    times = repetitions(source)
    row = next((row for row in _rows(text, EXTRA) if _times(row) > max(OFTEN, times)), None)
    return None if row is None else row.start() + len(row[1]) * times
