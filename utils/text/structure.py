"""What stands around the texts of a line: indents, markers of lists, headings and quotations, borders between cells."""

import re
from itertools import pairwise
from typing import NamedTuple

from utils.text.language import HAN, KANA
from utils.text.sentence import ORDINAL

_PARTS = r"</?(?:br|p|div|li|h[1-6]|t[drh])\b[^<>\n]*>"  # tags that part texts
# such a tag, or a bar with spaces around it, but not in code or in brackets, as in p(x | y); in a row, which has one at
# each end, any
_BORDER = re.compile(rf"`[^`\t\n]*`|[(（][^()（）\t\n]*[)）]|(\t|(?<!\S)[|｜](?!\S)|{_PARTS})")
_LINE, _TAIL = re.compile(r".*\n|.+"), re.compile(r"\s*[♪♫]*\s*\Z")
_BORDER_IN_ROW, _ROW = re.compile(r"(\t|(?<!\\)[|｜])"), re.compile(r"\s*[|｜].*[|｜]\s*")

_SIGNS = "・･·•‣◦●○◎■□▪▫◆◇▲△▼▽▶▷►★☆※→⇒✓✔✗✘❖♪♫"
_NUMBERS = (
    rf"\d{{1,3}}(?:\.\d{{1,3}})*[.．](?![!-~]|{ORDINAL.pattern})",  # not 1.5, nor 3. Oktober
    r"\d{1,2}、(?![一二三四五六七八九十数])",  # not 2、三日
    r"(?:\d{1,3}|[A-Za-z])[)）]",
    r"[(（\[](?:\d{1,3}|[A-Za-z ]|[ivx]{2,4}|[一二三四五六七八九十]{1,3}|[ア-ン])[)）\]]",
    r"[\u2460-\u24ff\u2776-\u2793\u3251-\u325f\u32b1-\u32bf]",  # ① and the like
)
_MARKERS = re.compile(
    rf"\A(?:[\s\ufeff]|{_PARTS}|※\d+(?=\s)|[{_SIGNS}]+(?=\s)|[{_SIGNS}](?![{_SIGNS}×])"  # not ○○市, nor ・・・
    rf"|(?:[-–—－*+]|[#＃]{{1,6}})(?=\s)|(?:[>＞]\s?)+(?![=\d])"
    rf"|(?:{'|'.join(_NUMBERS)})(?![とのはをがにやも\d,，、〜～-]))*"  # ①と② is a part of a sentence
)
# emphasis around all of a cell, and quotation marks that vocabularies of Japanese text do not have
_AROUND = re.compile(rf"(\*{{1,3}}|_{{1,2}}|[~～〜]+|‘(?=[{KANA}{HAN}]))([^\s*_~～〜‘’](?:[^*_~～〜‘’]*\S)?)(\1|’)")


class Cell(NamedTuple):
    """A text of a line."""

    text: str  # without what stands around it; empty only at the beginning
    gap: str  # what stands behind it


def split_cells(text: str) -> list[Cell]:
    """Split a text at tabs, bars and line breaks; the cells and their gaps are the text.

    What needs no translation is in the gaps: indents, markers, emphasis, and cells and lines without letters.
    """
    cells = [Cell("", "")]
    for line in _LINE.findall(text):
        borders = (_BORDER_IN_ROW if _ROW.fullmatch(line) else _BORDER).finditer(line)
        places = [0, *(place for border in borders if border[1] for place in border.span(1)), len(line)]
        for part in (line[begin:end] for begin, end in pairwise(places)):
            rest = _MARKERS.sub("", part)
            of_part = _TAIL.sub("", rest) if any(map(str.isalpha, rest)) else ""
            head, behind = part.removesuffix(rest) if of_part else part, rest.removeprefix(of_part)
            if around := _AROUND.fullmatch(of_part):
                head, of_part, behind = head + around[1], around[2], around[3] + behind
            cells[-1] = cells[-1]._replace(gap=cells[-1].gap + head)
            if of_part:
                cells.append(Cell(of_part, behind))
    return [cell for cell in cells if any(cell)]
