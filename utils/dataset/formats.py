"""Pairs in one file: TSV, CSV, JSON Lines or TMX, written once as the two files that everything else reads.

A file of any size is read as it comes; a row, an element or a unit that would fill the memory is refused.
"""

import csv
import json
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from io import BufferedIOBase
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from config.data import LANGUAGE_NAMES, primary_language
from utils.dataset.text import Pair, decoded_lines, open_text

Languages = tuple[str, str]
Pairs = Iterator[tuple[int, str, str]]  # line, source, target
Rows = Iterator[tuple[int, list[str]]]

_LONGEST = 2**20  # bytes of a line, or of TMX without the end of a unit
_MAX_LINES = 100  # of a row of CSV, beyond the first
_BROKEN = re.compile(r"[\0\ud800-\udfff]")  # JSON can spell half a character
# TMX has its text in segments, outside the elements there that keep formatting codes of the document
_OUTSIDE = {"seg": -1} | dict.fromkeys(("bpt", "ept", "it", "ph", "ut"), 1)
_BEGINNING = 100  # rows of a table without names that tell which of its columns are texts
_ALIKE = 12  # characters that texts of a column may have in common, but not most of them
_CODE = re.compile(r"\w+://\S*+|(?=.*?(?:[\d_/:@#=&|\\]|\.\w))[!-~]++|[\W\d_]*")  # an address, a name, a number
_ONE_PAIR = "does a row hold one pair, and is every quote closed?"


def pairs_in(path: Path, languages: Languages) -> Iterator[Pair]:
    """Yield the pairs of a file, source and target, with a space for a line break inside a text."""
    suffix, has_text = suffix_of(path), False
    if suffix not in _READERS:
        raise ValueError(f"{path} ends in none of {', '.join(_READERS)} (behind it .gz or .xz may follow): rename it")
    with open_text(path) as file:
        for number, *sides in _READERS[suffix](file, str(path), languages):
            if any(map(_BROKEN.search, sides)):
                raise ValueError(f"{path}, line {number} has a NUL or half a character: is the file damaged?")
            lines = [side.replace("\r", "\n").split("\n") for side in sides]
            src, tgt = (" ".join(filter(None, map(str.strip, of_side))) for of_side in lines)
            yield src, tgt
            has_text = has_text or bool(src and tgt)
    if not has_text:
        raise ValueError(f"{path} has no text in both {' and '.join(languages)}: were other languages meant?")


def suffix_of(path: Path) -> str:
    """Return the end of a file's name before that of a compressed one."""
    return Path(re.sub(r"\.(gz|xz)$", "", path.name.lower())).suffix


def column_names(path: Path) -> list[str]:
    """Return what a file of pairs calls the parts of a pair; of a table without names, its first row."""
    with open_text(path) as file:
        head, suffix = file.read(_LONGEST), suffix_of(path)
    text = head.decode("utf-16" if head.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig", "replace")
    names = re.findall(_NAME.get(suffix, "$."), text if suffix == ".tmx" else text.partition("\n")[0].strip())
    return _as_codes(names)


def _as_codes(names: Sequence[str]) -> list[str]:
    """Return names with codes for English names of languages; a single one may be a text about a language."""
    codes = [LANGUAGE_NAMES.get(name.strip().lower(), name) for name in names]
    return codes if len({*codes} - {*names}) > 1 else [*names]


@lru_cache(8)
def _places(names: tuple[str, ...], languages: Languages) -> list[int]:
    """Return the places of source and target among names, as far as they are there: by `en`, or `en-US`, or `tgt`."""
    codes = [name.strip().replace("_", "-").lower() for name in _as_codes(names)]
    backwards = range(len(names) - 1, -1, -1)  # of equal names, the first counts
    by_code, by_language = ({keys[i]: i for i in backwards} for keys in (codes, [*map(primary_language, codes)]))
    candidates = [
        [by_code.get(lang.replace("_", "-").lower(), by_language.get(primary_language(lang))) for lang in languages],
        *([*map(by_code.get, sides)] for sides in (("src", "tgt"), ("source", "target"))),
    ]
    return max(([place for place in dict.fromkeys(places) if place is not None] for places in candidates), key=len)


def _both(names: tuple[str, ...], languages: Languages, where: str) -> list[int]:
    """Return the places of source and target, or refuse names that lack one."""
    if len(sides := _places(names, languages)) < 2:
        raise ValueError(f"{where} has {', '.join(names)[:100] or 'nothing'}, not both {' and '.join(languages)}")
    return sides


def _lines(file: BufferedIOBase, name: str) -> Iterator[tuple[int, str]]:
    """Yield the numbers and the texts of lines."""

    def bounded() -> Iterator[bytes]:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST), b""), start=1):
            if len(line) == _LONGEST:
                raise ValueError(f"{name}, line {number} has {_LONGEST:,} bytes or more: {_ONE_PAIR}")
            yield line

    return enumerate(decoded_lines(bounded(), name), start=1)


class _Columns(NamedTuple):
    """Which columns of a table are source and target, and whether its first row names them."""

    src: int
    tgt: int
    has_names: bool


def _columns(rows: Sequence[tuple[int, list[str]]], name: str, languages: Languages) -> _Columns:
    """Find the sides by the names in the first of these rows, else as the only two columns with texts."""
    (begin, first), cells = rows[0], [*zip(*(row for _, row in rows), strict=True)]
    # a language that each row says of its texts is no name
    if any(cells[place].count(first[place]) == 1 for place in _places(tuple(first), languages)):
        src, tgt = _both(tuple(first), languages, f"{name}, line {begin}")
        return _Columns(src, tgt, has_names=True)
    sides = [column for column, texts in enumerate(cells) if len(cells) == 2 or _is_text(texts)]
    if len(sides) != 2:
        found = f" ({', '.join(str(column + 1) for column in sides)})" if sides else ""
        raise ValueError(
            f"{name} has {len(cells):,} columns without names, of which {len(sides)}, not 2, look like texts{found}: "
            f"give it a first row that names them, with {' and '.join(languages)} for the two sides"
        )
    return _Columns(sides[0], sides[1], has_names=False)


def _is_text(cells: Sequence[str]) -> bool:
    """Return whether most cells of a column have words, not always the same, as codes of languages are."""
    n, texts = len(cells), [cell.strip() for cell in cells if not _CODE.fullmatch(cell.strip())]
    return 2 * len(texts) > n and len({text[:_ALIKE] for text in texts}) > min(1, n - 1) + n // 20


def _rows(file: BufferedIOBase, name: str) -> Rows:
    """Yield the rows of a table: all of as many columns, two or more."""
    rows_of, separator = _ROWS[suffix_of(Path(name))]
    width = 0
    for number, row in rows_of(file, name):
        width = width or max(2, len(row))
        if len(row) != width:
            columns = f"{len(row):,} columns, not {width:,}" if len(row) > 1 else "one column"
            raise ValueError(f"{name}, line {number} has {columns}: is {separator} missing, or part of a text?")
        yield number, row


def _beginning(rows: Rows) -> list[tuple[int, list[str]]]:
    """Take the first row, and of a table of more than two columns those that tell which of them are texts."""
    first = [*islice(rows, 1)]
    return [*first, *islice(rows, _BEGINNING)] if first and len(first[0][1]) > 2 else first


def _table(file: BufferedIOBase, name: str, languages: Languages) -> Pairs:
    """Yield both sides of the rows."""
    rows = _rows(file, name)
    if beginning := _beginning(rows):
        src, tgt, has_names = _columns(beginning, name, languages)
        yield from ((number, row[src], row[tgt]) for number, row in chain(beginning[has_names:], rows))


def unnamed_columns(path: Path, languages: Languages) -> list[int]:
    """Return which columns, from 1, are read of a table of more than two that have no names; of other files none."""
    if suffix_of(path) not in _ROWS:
        return []
    with open_text(path) as file:
        beginning = _beginning(_rows(file, str(path)))
    if len(beginning) < 2:
        return []
    src, tgt, has_names = _columns(beginning, str(path), languages)
    return [] if has_names else [src + 1, tgt + 1]


def _tsv(file: BufferedIOBase, name: str) -> Rows:
    """Quotes are text here: many sentences begin with one."""
    return ((number, line.split("\t")) for number, line in _lines(file, name) if line)


def _csv(file: BufferedIOBase, name: str) -> Rows:
    lines = ((number, line + "\n") for number, line in _lines(file, name))
    for number, line in lines:
        following = islice((text for _, text in lines), _MAX_LINES)
        try:
            row = next(csv.reader(chain([line], following), strict=True))
        except csv.Error as error:
            raise ValueError(f"{name}, line {number}, where a row begins: {error}: {_ONE_PAIR}") from error
        if row:
            yield number, row


def _json_lines(file: BufferedIOBase, name: str, languages: Languages) -> Pairs:
    """An object a line, with the texts or, as in Hugging Face's datasets, with a `translation` that has them."""
    for number, line in _lines(file, name):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            item = json.loads(line)
            below = item.get("translation")
        except (ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"{where} is no JSON object: give one for each pair") from error
        item = below if isinstance(below, dict) else item
        texts = [[*item.values()][place] for place in _both(tuple(item), languages, where)]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{where} has a number, a list or null in place of a text: give both texts")
        yield number, texts[0], texts[1]


def _tmx(file: BufferedIOBase, name: str, languages: Languages) -> Pairs:
    """Units (tu) have variants (tuv), each with a segment (seg); one without both languages is left out."""
    parser, pairs = expat.ParserCreate(), list[tuple[int, str, str]]()
    parser.buffer_text = True
    variants = list[tuple[str, list[str]]]()  # of the present unit: language, and parts of the text
    outside, has_unit = 1, False  # text is read where outside is 0

    def start(element: str, attributes: dict[str, str]) -> None:
        nonlocal outside
        outside += _OUTSIDE.get(element, 0)
        if element == "tuv":
            variants.append((attributes.get("xml:lang") or attributes.get("lang", ""), []))

    def add(text: str) -> None:
        if variants and not outside:
            variants[-1][1].append(text)

    def end(element: str) -> None:
        nonlocal outside, has_unit
        outside -= _OUTSIDE.get(element, 0)
        if element == "tu":
            if len(sides := _places(tuple(language for language, _ in variants), languages)) == 2:
                src, tgt = ("".join(variants[place][1]) for place in sides)
                pairs.append((parser.CurrentLineNumber, src, tgt))
            variants.clear()
            has_unit = True

    def refuse_declarations(_name: str, _system: str | None, _public: str | None, has_declarations: int) -> None:
        if has_declarations:  # of entities that grow without end, say; a DTD that is only named is never read
            raise ValueError("a DOCTYPE with declarations")

    def refuse_entity(entity: str, _is_parameter: int) -> None:
        raise ValueError(f"&{entity}; is not declared here")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, add
    parser.StartDoctypeDeclHandler, parser.SkippedEntityHandler = refuse_declarations, refuse_entity
    try:
        while chunk := file.read(_LONGEST):
            has_unit = False
            parser.Parse(chunk)
            if not has_unit and len(chunk) == _LONGEST:
                raise ValueError(f"{_LONGEST:,} bytes without the end of a unit (</tu>)")
            yield from pairs
            pairs.clear()
        parser.Parse(b"", True)
    except (expat.ExpatError, ValueError, LookupError) as error:  # a LookupError: an encoding that is not known
        reason = f"{name}, line {parser.CurrentLineNumber}: {str(error).partition(': line')[0]}"
        raise ValueError(f"{reason}: export it again, as TMX in UTF-8 without a DOCTYPE") from error


_ROWS: dict[str, tuple[Callable[[BufferedIOBase, str], Rows], str]]  # of a table, and what separates its columns
_ROWS = {".tsv": (_tsv, "a tab"), ".csv": (_csv, "a comma")}
_READERS: dict[str, Callable[[BufferedIOBase, str, Languages], Pairs]]
_READERS = {".tsv": _table, ".csv": _table, ".jsonl": _json_lines, ".tmx": _tmx}
# of a side: in the first line, but in TMX anywhere
_NAME = {
    ".tsv": r"[^\t]+",
    ".csv": r'[^",]+',
    ".jsonl": r'"([^"]+)"\s*:',
    ".tmx": r"""<tuv\b[^>]*\blang=["']([^"']+)""",
}
