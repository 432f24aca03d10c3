"""Small texts, and translations of them with some errors."""

from typing import NamedTuple

from tests.tiny import TEXT


class Translated(NamedTuple):
    references: list[str]
    good: list[str]
    bad: list[str]


def _worse(lines: list[str], stride: int, cut: str) -> list[str]:
    """In every n-th line, two words swap places and another is lost."""
    found = []
    for i, line in enumerate(lines):
        words = line.split(cut) if cut else list(line)
        if i % stride == 0:
            words[1], words[-2] = words[-2], words[1]
        if i % stride == 1:
            del words[3]
        found.append(cut.join(words))
    return found


def _translated(lines: list[str], cut: str) -> Translated:
    return Translated(lines, _worse(lines, 4, cut), _worse(_worse(lines, 2, cut), 5, cut))


ENGLISH = _translated([line if i % 3 else f"Isn't it so? {line}" for i, line in enumerate(TEXT.tgt[:40])], " ")
TOKENIZED = Translated(*([line.replace(".", " .") for line in side] for side in ENGLISH))
JAPANESE = _translated([f"{a}{b}" for a, b in zip(TEXT.src[:40], TEXT.src[60:100], strict=True)], "")
