"""Plain text in columns, for a terminal: Japanese characters are two columns wide."""

import unicodedata
from collections.abc import Sequence


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes (Unicode Standard Annex #11)."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def aligned(rows: Sequence[Sequence[str]], alignment: str, indent: str = "  ") -> list[str]:
    """A line for each row, with the cells below each other.

    Args:
        rows: of as many cells as there are letters in `alignment`.
        alignment: `l` or `r` for each column.
        indent: what all lines begin with.
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
    """The text in lines of at most `width` columns, 2 or more.

    A line is cut behind the last space of its second half, and where there is none between two characters. Control
    characters, which a terminal would obey instead of showing them, become spaces.
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
    """A line as long as a share, 0 to 1, of a full one; what is not nothing is seen."""
    return "#" * (max(1, round(share * length)) if share > 0 else 0)
