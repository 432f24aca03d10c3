"""Plain text in columns for a terminal, where Japanese characters are two columns wide."""

import unicodedata
from collections.abc import Sequence


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
