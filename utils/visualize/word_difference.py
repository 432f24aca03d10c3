"""The words of a sentence that another sentence does not have in that place (difflib: Ratcliff & Obershelp 1988)."""

import re
from difflib import SequenceMatcher
from itertools import groupby

_HIRAGANA, _KATAKANA, _KANJI = "\u3041-\u309f", "\u30a0-\u30ff", "\u3005\u3400-\u4dbf\u4e00-\u9fff"
# Without spaces, a run of one script counts as a word: good enough to show what differs, in any language.
_WORD = re.compile(rf"[{_HIRAGANA}]+|[{_KATAKANA}]+|[{_KANJI}]+|(?:[\w'’](?<![{_HIRAGANA}{_KATAKANA}{_KANJI}]))+|\s+|.")


def word_difference(text: str, other: str) -> list[tuple[str, bool]]:
    """Split the text into pieces, each with whether it differs from the other text; joined, they give the text."""
    pieces, others = _WORD.findall(text), [piece for piece in _WORD.findall(other) if not piece.isspace()]
    words = [place for place, piece in enumerate(pieces) if not piece.isspace()]
    matcher = SequenceMatcher(None, [pieces[place] for place in words], others, autojunk=False)
    differs = [True] * len(pieces)
    for first, _, size in matcher.get_matching_blocks():
        for place in words[first : first + size]:
            differs[place] = False
    for place, piece in enumerate(pieces):
        if piece.isspace():  # marked only between two marked words
            differs[place] = all(differs[max(0, place - 1) : place] + differs[place + 1 : place + 2])
    marked = groupby(zip(pieces, differs, strict=True), key=lambda pair: pair[1])
    return [("".join(piece for piece, _ in run), differing) for differing, run in marked]
