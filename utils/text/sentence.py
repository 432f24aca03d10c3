"""Where sentences end, by the punctuation of European languages and of Chinese, Japanese and Korean."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from utils.text.language import HAN, KANA

_BRACKETS = dict(zip("「『｢（(［[｛{【〔〈《“«", "」』｣）)］]｝}】〕〉》”»", strict=True))
_CLOSING = "".join(_BRACKETS.values()) + "\"'’"
_MARKS = "。｡．！？.!?…‥"
_END = re.compile(rf"([{_MARKS}]+)[{re.escape(_CLOSING)}]*")
_STOP = re.compile(rf"[{_MARKS}][{re.escape(_CLOSING)}]*$")  # at the end of what brackets hold
_BREAK = re.compile(r"\s*[\n\r\u2028\u2029]\s*")
# what goes on with a sentence after a quotation in it: 「…。」と言った
_PARTICLE = re.compile(
    "と|って|は|が(?!、)|を|に|の|も|など|なん|なの|で(?!も|は|す)|や|か|よ|へ|だ(?!が|から)|らし|ばかり|[くぐ]らい|まで|っぽ|[、，・：:]"
)
_COMMA, _SPACE = re.compile(r"[、，;；:：]|,(?!\d)"), re.compile(r"\s")
_LETTER = re.compile(r"[^\W\d_]")
_JAPANESE = re.compile(f"[{KANA}{HAN}]")
# Abbreviations, by what follows them where they end no sentence: anything, a number, or a name. Those of KFTT's English
# are here, as Kiss & Strunk (2006) tell them: words that mostly have a full stop behind them, also within a sentence.
_ALWAYS = (
    r"(?i:mr|mrs|ms|mx|dr|prof|st|mt|gen|gov|hon|lt|col|sgt|capt|rev|mme|mlle|messrs|msgr|vs|e\.?g|i\.e|cf|viz|esp|"
    r"incl|approx|z\.b|d\.h|bzw|vgl|ggf|evtl|inkl|sog|mio|mrd)|v|"
    "[Cc]a|Adm|Amb|Brig|Cmdr|Cpl|Emp|Fr|Ft|Lieut|Maj|Mts|Pres|Pt|Pvt|Rep|Sen|Sta|Supt|Ven"
)
_BEFORE_NUMBER = (
    "(?i:nos?|nr|vols?|div|figs?|eq|secs?|ch|art|pp?|op|para|cl|ref|fol|tab|ser|ver|apt|bldg|rm|ste|dist|ext|tel|rs|fr|"
    r"ft|lb|oz|alt|pop|max|min|al|c|b|d|r|fl|est|pl|pt|bd|kap|abs|abb|geb|\w*str|"
    "jan|feb|mar|apr|june?|july?|aug|sept?|oct|nov|dec)"
)
_NUMBER = r"\s+[(\[]?(?:\d|[IVXLC]{2,}\b|[VX]\b|I\b(?!['’]|\s+(?!of\b)[a-z]))"
_BEFORE_NAME = "(?i:mfg|co|corp|inc|ltd|bros|dept|univ|asst|jr|sr|ed|trans|pref|ave|blvd|rd|bldg|hwy)"
_INITIALS = r"[A-HJ-Z]|(?:[A-Za-z]{1,2}\. ?)+[A-Za-z]"  # J, U.S, Ph.D, z. B
_LAST_WORD = re.compile(r"\A(?:[A-Za-z](?: \.[A-Za-z]\b){1,3}|[\w.]*)")  # backwards
_LONGEST = 30  # characters of an abbreviation, or of a number
ORDINAL = re.compile(r"\s+(?:Jan|Feb|März|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez|Jahrhundert)")
# after an abbreviation such as U.S. or a.m., one of these begins a sentence; other words go on with it
_STARTER = r"\s+(?:The|A|An|He|She|It|They|We|You|I|This|That|These|In|On|At|But|And|However|There|When)\b(?!\.)"
_ABBREVIATION = re.compile(  # a word, \0, and what follows its full stop
    rf"(?:{_ALWAYS})\0|.\0\s+[A-Za-z]\.|(?:{_BEFORE_NUMBER})\0{_NUMBER}|(?:{_BEFORE_NAME}|{_INITIALS})\0(?!{_STARTER})"
)


class Sentence(NamedTuple):
    """A sentence of a text."""

    text: str  # without spaces around it
    gap: str  # the spaces and line breaks behind it, as they are in the text


def split_sentences(text: str, whole: Sequence[tuple[int, int]] = ()) -> list[Sentence]:
    """Split a text at line breaks and sentence ends; the sentences and their gaps are the text, but for its beginning.

    What stands in brackets or quotation marks is not split; closing ones stay with the sentence that they end. Nor is
    what has its first and last place in `whole`, such as a name.
    """
    sentences, begin = [], len(text) - len(text.lstrip())
    ends = [end for end in _ends(text) if not any(first < end < last for first, last in whole)]
    for end in [*ends, len(text)]:
        part = text[begin:end].rstrip()
        if part:
            behind = begin + len(part)
            begin = len(text) - len(text[behind:].lstrip())
            sentences.append(Sentence(part, text[behind:begin]))
    return sentences


def split_long(sentence: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a sentence into parts that fit: in the middle at a comma, else at a space, else between two letters."""
    n = len(sentence)
    if n < 2 or fits(sentence):
        return [sentence]
    for pattern in (_COMMA, _SPACE):
        # not far from the middle, where a part would be too short to be understood
        places = [comma.end() for comma in pattern.finditer(sentence, n // 5) if comma.end() <= n - n // 5]
        if places:
            break
    else:
        places = [n // 2]
    middle = min(places, key=lambda place: abs(2 * place - n))
    return [part for half in (sentence[:middle], sentence[middle:]) for part in split_long(half.strip(), fits)]


def _ends(text: str) -> list[int]:
    closing, ends, i, begin = _closings(text), [], 0, 0
    breaks = {m.start(): m.end() for m in _BREAK.finditer(text)}
    while i < len(text):
        if i in breaks:
            ends.append(i)
            i = begin = breaks[i]
            continue
        if i in closing:  # brackets: only what they end with may end a sentence
            after = closing[i] + 1
            if _STOP.search(text[i : closing[i]]) and _is_end_of_quotation(text, after):
                ends.append(after)
                begin = after
            i = after
            continue
        marks = _END.match(text, i)
        after = marks.end() if marks else i + 1
        if marks and _is_end(marks[1], text[begin:i], text[after:]):
            ends.append(after)
            begin = after
        i = after
    return ends


def _closings(text: str) -> dict[int, int]:
    """Return the place of the closing bracket for that of each opening one which has one in its line."""
    closings: dict[int, int] = {}
    open_at: list[int] = []
    straight = None
    for i, character in enumerate(text):
        if character in "\n\r":
            open_at, straight = [], None
        elif character in _BRACKETS:
            open_at.append(i)
        elif character == '"':
            if straight is None:
                straight = i
            else:
                closings[straight], straight = i, None
        elif character in _CLOSING:
            match = next((j for j in reversed(open_at) if _BRACKETS[text[j]] == character), None)
            if match is not None:
                closings[match] = i
                del open_at[open_at.index(match) :]
    return closings


def _is_end_of_quotation(text: str, after: int) -> bool:
    rest = text[after:]
    if not rest or rest[0] in _BRACKETS or rest[0] == '"':
        return True
    if rest[0].isspace():
        return not rest.lstrip()[:1].islower()
    return bool(_JAPANESE.match(rest)) and not _PARTICLE.match(rest)


def _is_end(marks: str, before: str, rest: str) -> bool:
    """Return whether marks end the sentence before them; the rest of the text begins behind what they close."""
    if not rest or set(marks) & set("。｡"):
        return True
    if rest[0].isspace():
        return not rest.lstrip()[:1].islower() and not (marks in (".", "．") and _is_abbreviation(before, rest))
    if not set(marks) & set("．！？.!?"):
        return False  # a pause: あの…それは
    begins = rest[0] in _BRACKETS or rest[0] == '"' or bool(_LETTER.match(rest))
    return begins and not before[-1:].isascii()  # not in Yahoo!ニュース, 3.14 or example.com


def _is_abbreviation(before: str, rest: str) -> bool:
    # no longer than an abbreviation is: a text may be one word of a million letters
    word = _LAST_WORD.findall(before[:-_LONGEST:-1])[0][::-1]
    if word.isdigit():
        return word == before.strip() or bool(ORDINAL.match(rest))  # 1. at the beginning; 3. Oktober
    return _ABBREVIATION.match(f"{word}\0{rest}") is not None
