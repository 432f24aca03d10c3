"""Messages of a program (gettext, .po): those without a translation get one.

All else stays byte for byte, but for a charset other than UTF-8 in the head: that is what the file is written in.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from utils.search.inspection import SpanLinks
from utils.search.markup import TaggedText
from utils.terminal.subtitles import content_of, line_numbers, tagged
from utils.text.protected import NAME_MARKS, NUMBER_MARKS

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_STRINGS = rf"(?:[ \t]*{_STRING}[ \t]*\r?(?:\n|\Z))+"
_MESSAGE = re.compile(  # or comments without one: otherwise each of their lines would be tried as their first
    rf"(?:^|(?<=\ufeff))(?P<comments>(?:#(?!\|).*\n)*+)(?P<previous>(?:#\|.*\n)*+)(?:(?P<message>(?:msgctxt{_STRINGS})?msgid(?P<one>{_STRINGS})(?:msgid_plural(?P<many>{_STRINGS}))?)"
    rf"(?P<translations>(?:msgstr(?:\[\d+\])?{_STRINGS})+))?",
    re.M,
)
_DIRECTIVE = r"(?:[-+0#']|'[^\w\s])*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh?|ll?|[jztL])?[A-Za-z@]"
_QT = r"%L?(?:\d{1,2}|n\b)"  # %1, %L1 and %n
# What the flag of a message says of its placeholders, besides those that have braces or a dollar:
# https://www.gnu.org/software/gettext/manual/html_node/PO-Files.html
_FORMATS = {
    "boost": r"%\d+%|%\|[^|\s]*\|",  # %1% and %|5|
    **dict.fromkeys(("kde", "kde-kuit", "qt", "qt-plural"), _QT),
    # otherwise: 100%%, %<PRIu64> of C, %<name>s of Ruby, what C, Objective-C, Perl, PHP and Python have in common, %1
    "": r"%%|%[-+0#']*\d*<PRI\w+>|%<\w+>[-+0#]*\d*(?:\.\d+)?[bdefgiosuxX](?![\w<])"
    rf"|%(?:\d+\$)?(?:\(\w+\))?{_DIRECTIVE}|{_QT}",
    # besides, where no message of the file has such a flag: @count, !name and %name of Drupal, :attribute of Laravel
    "none": r"(?<![\w@!:%])(?:[@!:][A-Za-z][\w-]+|%[a-z][\w-]{2,})",
}
_BRACES = r"[$%]?\{\{?[^{}]*\}\}?|[{}]|\$[A-Za-z_]\w*"
_NUMBER = re.compile(r"%(?:L\d+|n|.*[diu](?:\d+>)?)|@count")  # a placeholder of a number
_IN_ORDER = re.compile(rf"%(?:{_DIRECTIVE}|[^<]*<PRI.*)|\{{(?:[:!].*)?\}}", re.A)  # one without a name or a number
# of ICU and Java, with a text for each case
_CASES = re.compile(r"\{\s*\w+\s*,\s*(?:choice|plural|select|selectordinal)\b")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r"}


class Catalog:
    """A file of messages, taken apart: `texts` are to be translated, and are of messages on the lines of these numbers.

    Each line of a message is one text. What gets a translation is marked as fuzzy, which keeps programs from showing
    it before somebody has looked at it.
    """

    lost = "left as it is: its translation would lack"

    def __init__(self, path: Path) -> None:
        self._content = content_of(path)
        self._forms: dict[int, list[list[_Line]]] = {}  # the lines of each form, by where a message begins
        self._lines, self.texts, self.numbers = list[_Line](), list[TaggedText](), list[int]()
        has_formats = bool(_formats(self._content))
        number_at = line_numbers(self._content)
        for message in filter(_has_text, _MESSAGE.finditer(self._content)):
            sources = [_unquoted(message[name]) for name in ("one", "many") if message[name]]
            if not sources[0] or _unquoted(message["translations"]):  # the head of the file, or it has a translation
                continue
            used = sources if len(_heads(message)) > 1 else sources[-1:]
            formats = _formats(message["comments"])
            pattern = _placeholder(next((format_ for format_ in formats if format_ in _FORMATS), ""), has_formats)
            forms = [[_Line(line, pattern) for line in form.split("\n")] for form in used]
            self._forms[message.start()] = forms
            lines = [line for form in forms for line in form if line.passage.texts]
            texts = [text for line in lines for text in line.passage.texts]
            self._lines += lines
            self.texts += texts
            self.numbers += [number_at(message.start("message"))] * len(texts)
        rest = _MESSAGE.sub(lambda message: "\n" * message[0].count("\n"), self._content)
        for number, line in enumerate(rest.split("\n"), 1):
            if (strange := line.strip(" \t\r\ufeff")) and not strange.startswith("#"):
                raise ValueError(f"{path}, line {number}: {strange[:40]!r} belongs to no message: msgid, then msgstr")

    def filled(self, translations: Sequence[tuple[str, SpanLinks]]) -> str:
        """Return the file with these translations, and their links, but for those that lack a placeholder or a tag."""
        rest = iter(translations)
        for line in self._lines:
            line.fill(rest)
        return _MESSAGE.sub(self._translated, self._content)

    def _translated(self, message: re.Match[str]) -> str:
        if not _has_text(message):
            return message[0]
        if not _unquoted(message["one"]):  # it is the head of the file
            return re.sub(r"(?<=charset=)(?!UTF-8\b)[\w.:-]+", "UTF-8", message[0], flags=re.I)
        forms = self._forms.get(message.start(), [])
        lines = [line for form in forms for line in form]
        if not any(line.translation for line in lines) or any(line.passage.lost for line in lines):
            return message[0]
        end = "\r\n" if "\r\n" in message[0] else "\n"
        quoted = [_quoted([line.translation or line.raw for line in form], end) for form in forms]
        # the first form is that of one thing, in most languages
        translations = [f"{head} {quoted[min(i, len(quoted) - 1)]}{end}" for i, head in enumerate(_heads(message))]
        return f"{message['comments']}#, fuzzy{end}{message['previous']}{message['message']}{''.join(translations)}"


class _Line:
    """A line of a message; in `passage`, a mark that translations keep stands for each placeholder (%s, {name})."""

    def __init__(self, raw: str, pattern: re.Pattern[str]) -> None:
        self.raw, self.translation = raw, ""
        self._placeholders: dict[str, str] = {}  # by their marks
        free = [iter(marks) for marks in (NAME_MARKS, NUMBER_MARKS)]

        def mark(placeholder: re.Match[str]) -> str:
            if placeholder[0] == "%%":
                return "%"
            of_it = next(free[bool(_NUMBER.fullmatch(placeholder[0]))], placeholder[0])
            self._placeholders[of_it] = placeholder[0]
            return of_it

        self.passage = tagged(pattern.sub(mark, raw))

    def fill(self, translations: Iterator[tuple[str, SpanLinks]]) -> None:
        """Take the next translations; what they do not have exactly once, or in another order, is then in `lost`."""
        filled, of = self.passage.filled(translations), self._placeholders
        filled = filled.replace("%", "%%") if "%%" in self.raw else filled
        in_order = [mark for mark in of if _IN_ORDER.fullmatch(of[mark])]
        wrong = [mark for mark in of if filled.count(mark) != 1]
        if not wrong and sorted(in_order, key=filled.index) != in_order:
            wrong = in_order
        cases = {f"{begin} ...}}" for begin in _CASES.findall(self.raw)}  # each is to be translated by hand
        self.passage.texts[0].lost |= {of[mark] for mark in wrong} | cases
        self.translation = "".join(of.get(char, char) for char in filled)


def _formats(comments: str) -> list[str]:
    """Return what flags such as `#, c-format` name."""
    return [name for flags in re.findall(r"^#,.*", comments, re.M) for name in re.findall(r"([a-z-]+)-format\b", flags)]


@cache
def _placeholder(format_: str, has_formats: bool) -> re.Pattern[str]:
    """Return the pattern of a message's placeholders, by its format, and whether the file has any."""
    return re.compile("|".join([*([] if has_formats else [_FORMATS["none"]]), _FORMATS[format_], _BRACES]), re.A)


def _has_text(message: re.Match[str]) -> bool:
    return message["message"] is not None


def _heads(message: re.Match[str]) -> list[str]:
    """Return `msgstr`, or `msgstr[0]` and so on: as many as the language has forms."""
    return re.findall(r"^msgstr\S*", message["translations"], re.M)


def _unquoted(strings: str) -> str:
    """Return what the strings of a message say together."""
    said = "".join(string[1:-1] for string in re.findall(_STRING, strings))
    return re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0][1:]), said)


def _quoted(lines: Sequence[str], end: str) -> str:
    """Write the lines of a message as strings."""
    escaped = [re.sub(r'[\\"]', r"\\\g<0>", line).replace("\t", "\\t").replace("\r", "\\r") for line in lines]
    strings = [f'"{line}\\n"' for line in escaped[:-1]] + ([f'"{escaped[-1]}"'] if escaped[-1] else [])
    return strings[0] if len(strings) == 1 else end.join(['""', *strings])
