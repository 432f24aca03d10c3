"""Texts: reading, cleaning, holding out, ids, caches; published corpora, the embedded one, Multi30k as in seq2seq."""

import gzip
import hashlib
import io
import itertools
import lzma
import os
import random
import re
import subprocess
import tarfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import sha1
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.data import CleanConfig, DataConfig, LabelledConfig, MonolingualConfig, TokenizerConfig
from const.corpora import CORPORA, CorpusSpec
from const.path import PRESET, ROOT
from utils.arguments import read_arguments
from utils.config import TranslationConfig
from utils.dataset import cache, embedded, ids, monolingual
from utils.dataset import corpus as corpus_module
from utils.dataset import formats as formats_module
from utils.dataset import text as text_module
from utils.dataset.batch import BucketSampler, require_positions
from utils.dataset.check import check_own_text
from utils.dataset.corpus import SPLITS, Corpus, FurtherText, facts, install, prepare_corpus, prepare_to_score, take
from utils.dataset.embedded import MinimalPair, Pair, read_constructions, sentence_split
from utils.dataset.formats import pairs_in, unnamed_columns
from utils.dataset.ids import (
    TokenArray,
    TokenPairs,
    cached_tokenizer,
    cached_tokenizers,
    cached_tokens,
    training_tokens,
)
from utils.dataset.labelled import LabelledText, LabelNames, fingerprint, text_pairs
from utils.dataset.monolingual import Document, MonolingualCorpus, prepare_monolingual, read_documents
from utils.dataset.text import ParallelFiles, ParallelText, TextLines, clean, hold_out, read_parallel, write_split
from utils.file import write_lines
from utils.text.tokenizer import Tokenizer, TokenizerPair, WordTokenizer, id_of_each, train_tokenizer

Patch = pytest.MonkeyPatch
Pairs = list[tuple[str, str]]
Files = dict[str, bytes]
Folders = pytest.TempPathFactory


def quiet(_: str) -> None: ...


def write(path: Path, *lines: str) -> Path:
    write_lines(path, lines)
    return path


def written(folder: Path, pairs: Sequence[tuple[str, str]], name: str = "text") -> ParallelFiles:
    src, tgt = zip(*pairs, strict=True)
    return ParallelFiles(write(folder / f"{name}.src", *src), write(folder / f"{name}.tgt", *tgt))


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def pairs_of(files: ParallelFiles) -> Pairs:
    return list(zip(*map(lines, files), strict=True))


def stripped(files: ParallelFiles) -> Pairs:
    return [(src.strip(), tgt.strip()) for src, tgt in pairs_of(files)]


def ids_of(array: TokenArray) -> list[list[int]]:
    return [array[i].tolist() for i in range(len(array))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "corpus"


@pytest.fixture
def small_blocks(monkeypatch: Patch) -> None:
    monkeypatch.setattr(text_module, "BLOCK", 16)


# reading


@pytest.mark.parametrize(
    ("src", "expected"),
    [
        ("古い\r都\u2028\n橋 \n".encode(), ["古い\r都\u2028", "橋 "]),
        ("\ufeff都\r\n橋\r\n".encode(), ["都", "橋"]),
        ("BZh\n橋".encode(), ["BZh", "橋"]),
        ("\n橋\n".encode(), ["", "橋"]),
        ("都\r\n古い\r橋".encode(), ["都", "古い\r橋"]),
        (gzip.compress("京\n都".encode(), mtime=0), ["京", "都"]),
        (lzma.compress("京\n都".encode()), ["京", "都"]),
    ],
    ids=["other ends", "carriage returns", "no bzip2", "an empty line", "CR behind LF", "gzip", "xz"],
)
def test_only_a_newline_ends_a_line_compressed_or_not(src: bytes, expected: list[str], tmp_path: Path) -> None:
    files = written(tmp_path, [("", "a"), ("", "b")])
    files.src.write_bytes(src)
    assert read_parallel(files) == ParallelText(expected, ["a", "b"])
    again = TextLines(files.src)
    assert (len(again), list(again), list(again)) == (2, expected, expected)


TORN = " is compressed, and damaged or truncated (Compressed file ended"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"one\ntwo\n\xff\n", ", line 3: byte 0xff is not UTF-8"),
        (gzip.compress("都\n".encode(), mtime=0)[:-9], TORN),
        (lzma.compress("都\n".encode())[:-9], TORN),
        ("1\n都\n".encode("iso-2022-jp"), ", line 2 is in ISO-2022-JP: save it as UTF-8"),
        ("都\n".encode("utf-16"), " is UTF-16: save it as UTF-8"),
        ("old\n".encode("utf-16-le"), ", line 1 has a NUL: is it UTF-16"),
        (b"one\rtwo\r\rthree", " has 3 line ends of CR alone, which end no line here: save it with LF"),
        (b" \n\t\n", " holds no text"),
        (b"1\n2\n3\n4\n", " has 4: line i of one must translate line i of the other"),
        (None, "no such file: "),
    ],
)
def test_what_is_no_parallel_text_is_refused_in_one_line(data: bytes | None, fault: str, tmp_path: Path) -> None:
    files = written(tmp_path, [("1", "1"), ("2", "2"), ("3", "3")])
    if data is None:
        files.tgt.unlink()
    else:
        files.tgt.write_bytes(data)
    with pytest.raises(ValueError, match=rf"^[^\n]*{re.escape(fault)}[^\n]*$") as caught:
        read_parallel(files)
    assert str(files.tgt) in str(caught.value)


# pairs in one file

JA_EN = ("ja", "en")
_DTD = '<!DOCTYPE tmx SYSTEM "tmx14.dtd">'
_LAUGHS = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10 if i else "ha"}">' for i in range(10))
_LAUGHS = f"<!DOCTYPE tmx [{_LAUGHS}]>"


def read(folder: Path, name: str, content: str | bytes, languages: tuple[str, str] = JA_EN) -> Pairs:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return [*pairs_in(folder / name, languages)]


def unit(**texts: str) -> str:
    of = (f'<tuv xml:lang="{code.replace("_", "-")}"><seg>{text}</seg></tuv>' for code, text in texts.items())
    return f"<tu><note>a note</note>{''.join(of)}</tu>"


def tmx(*units: str, encoding: str = "UTF-8", doctype: str = _DTD) -> str:
    head = f'<?xml version="1.0" encoding="{encoding}"?>\n{doctype}<tmx version="1.4"><header/>\n<body>'
    return f"{head}{chr(10).join(units)}</body></tmx>\n"


@pytest.mark.parametrize("page", ["docs/own_text.md", "docs/ja/own_text.md"])
def test_the_formats_that_the_page_shows_are_read_as_the_same_pairs(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(tsv|csv|json|xml)\n(.*?)^```$", text, re.S | re.M)
    shown = dict(reversed(blocks))  # the first in each language
    for language, name in ("tsv", "tsv"), ("csv", "csv"), ("json", "jsonl"), ("xml", "tmx"):
        assert read(tmp_path, f"my.{name}", shown[language]) == [
            ("京都は日本の古都である。", "Kyoto is an ancient capital."),
            ("雨が降っている。", "It is raining."),
        ]


@pytest.mark.parametrize(
    ("name", "content", "pairs"),
    [
        ("a.tsv", '\ufeff「都」\t"Miyako\r\n\n橋\t\n', [("「都」", '"Miyako'), ("橋", "")]),
        ("a.TSV", "n\ten_GB\tJA\n1\tcapital\t都\n", [("都", "capital")]),
        ("a.csv", 'en,jpn\n"a ""big"", old\r\n \ncapital ",都\n\n', [("都", 'a "big", old capital')]),
        ("a.csv", "target,source_lang,source\ncapital,ja,都\n", [("都", "capital")]),
        ("a.tsv", "Japanese\tEnglish\n都\tcapital\n", [("都", "capital")]),
        ("a.csv", "English, japanese\ncapital,都\n", [("都", "capital")]),
        ("a.tsv", "英語\tEnglish\n都\tcapital\n", [("英語", "English"), ("都", "capital")]),
        ("a.csv.gz", gzip.compress("都,capital\n".encode(), mtime=0), [("都", "capital")]),
        ("a.jsonl", '{"id": 1, "translation": {"en": "a\\nb", "ja": "都"}}\n\n', [("都", "a b")]),
        ("a.jsonl", '{"src": "都", "tgt": "c"}\n{"en": "b", "ja": "橋", "translation": 1}', [("都", "c"), ("橋", "b")]),
        ("a.tmx", tmx(unit(en="1", fr="2"), unit(en_US="a &lt; b", fr="2", ja="\n都\n市\n")), [("都 市", "a < b")]),
        ("a.tmx", tmx(unit(en_US="1", en="2", ja="都", JA_JP="3")), [("都", "2")]),
        ("a.tmx", tmx(unit(ja="都", en='<bpt i="1">{b}<sub>s</sub></bpt><hi>big</hi><ph/> c')), [("都", "big c")]),
        ("a.tmx", tmx(unit(ja="都", en="capital"), encoding="UTF-16").encode("utf-16"), [("都", "capital")]),
    ],
)
def test_sides_are_found_by_language(name: str, content: str | bytes, pairs: Pairs, tmp_path: Path) -> None:
    assert read(tmp_path, name, content) == pairs


# what is downloaded without names of columns: {} is a number that differs from row to row, then come both texts
UNNAMED = {
    "1.{0}\t{1}\t{2}": "23",
    "{0}\tjpn\t{1}\t7{0}\teng\t{2}": "36",
    "{0}\t{1}\t7{0}\t{2}": "24",
    "{1}\t{2}\t0.{0}": "12",
    "{1}\t{2}\tCC-BY 2.0 (France) Attribution: example.org #{0} (a)": "12",
    "a.org\thttps://a.org/寺{0}\thttps://a.org/{0}\t{1}\t{2}": "45",
    "ja\ten\tdoc-{0}.txt\t\t{1}\t{2}": "56",
}


@pytest.mark.parametrize("row", UNNAMED)
@pytest.mark.parametrize("n", [3, 120])
def test_the_texts_of_a_table_without_names_are_found_among_its_columns(row: str, n: int, tmp_path: Path) -> None:
    texts = [(f"{i}番の寺", "Go." if i % 3 else f"Temple {i} is old.") for i in range(n)]
    assert read(tmp_path, "a.tsv", "\n".join(row.format(i, *pair) for i, pair in enumerate(texts))) == texts
    assert unnamed_columns(tmp_path / "a.tsv", JA_EN) == [*map(int, UNNAMED[row])]


@pytest.mark.parametrize(("texts", "found"), [("{1}\t{2}\t{2}", "3, not 2, look like texts (2, 3, 4)"), ("a\t1", "0")])
def test_a_table_without_names_and_without_two_texts_is_refused(texts: str, found: str, tmp_path: Path) -> None:
    rows = "\n".join(f"{i}\t{texts}".format(i, f"寺{i}", f"temple {i}") for i in range(9))
    with pytest.raises(
        ValueError, match=rf"of which {re.escape(found)}.*: give it a first row that names them, with ja"
    ):
        read(tmp_path, "a.tsv", rows)


def test_a_language_is_taken_as_it_is_written_before_another_of_its_kind(tmp_path: Path) -> None:
    table = "zh-CN\tzh_TW\ten-US\n1\t2\t3\n"
    assert read(tmp_path, "a.tsv", table, ("zh-TW", "en")) == [("2", "3")]
    assert read(tmp_path, "a.tsv", table, ("en", "zh")) == [("3", "1")]
    with pytest.raises(ValueError, match=r"a\.tsv, line 1 has zh-CN, zh_TW, en-US, not both zh-HK and zh$"):
        read(tmp_path, "a.tsv", table, ("zh-HK", "zh"))


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.txt", "都\tcapital\n", " ends in none of .tsv, .csv, .jsonl, .tmx "),
        ("a.tsv", "", " has no text in both ja and en"),
        ("a.tsv", "都 capital\n", ", line 1 has one column: is a tab missing"),
        ("a.tsv", "都\tcapital\n橋\ta\tbridge\n", ", line 2 has 3 columns, not 2"),
        ("a.tsv", "id\tja\n1\t都\n", ", line 1 has id, ja, not both ja and en"),
        ("a.tsv", "都\tcapital\n".encode() + "橋\tbridge\n".encode("cp932"), ", line 2: byte 0x8b is not UTF-8"),
        ("a.tsv", "都\tcapi\0tal\n", ", line 1 has a NUL"),
        ("a.tsv", "a\t" * 10**6, ", line 1 has 1,048,576 bytes or more"),
        ("a.tsv", "\t" * 10**6 + "\n都", ", line 2 has one column"),
        ("a.csv", "id,ja,en\n1,都\n", ", line 2 has 2 columns, not 3"),
        ("a.csv", 'ja,en\n都,"capital\n' + "橋,bridge\n" * 10**5, ", line 2, where a row begins: unexpected end of"),
        ("a.csv", '都,"capital' + "l" * 10**6, ", line 1, where a row begins: field larger than field limit"),
        ("a.jsonl", '{"ja": "都", "en": "c"}\n{"ja": "都",\n', ", line 2 is no JSON object"),
        ("a.jsonl", '["都", "capital"]\n', ", line 1 is no JSON object"),
        ("a.jsonl", "[" * 10**6, ", line 1 is no JSON object"),
        ("a.jsonl", "1" * 10**6, ", line 1 is no JSON object"),
        ("a.jsonl", '{"ja": "都", "en": null}\n', ", line 1 has a number, a list or null in place of a text"),
        ("a.jsonl", '{"ja": "都", "en": "\\ud800"}\n', ", line 1 has a NUL or half a character"),
        ("a.tmx", "", ", line 1: no element found: export it again"),
        ("a.tmx", tmx(unit(ja="都", fr="c")), " has no text in both ja and en"),
        ("a.tmx", tmx(unit(ja="都", en="c"))[:-9], ", line 3: unclosed token"),
        ("a.tmx", tmx(unit(ja="都", en="c")).encode("cp932"), ", line 3: not well-formed"),
        ("a.tmx", tmx(unit(ja="都", en="c"), encoding="cp932"), ", line 1: multi-byte encodings are not supported"),
        ("a.tmx", tmx(unit(ja="都", en="c"), encoding="none"), ", line 1: unknown encoding: none"),
        ("a.tmx", tmx(unit(ja="都", en="&nbsp;")), ", line 3: &nbsp; is not declared here"),
        ("a.tmx", tmx(unit(ja="都", en="&a9;"), doctype=_LAUGHS), ", line 2: a DOCTYPE with decl"),
        ("a.tmx", tmx(f'<tu a="{"a" * 10**7}"/>'), ", line 3: 1,048,576 bytes without the end of a unit"),
        ("a.tmx.gz", gzip.compress(tmx(unit(ja="都", en="c")).encode(), mtime=0)[:-9], " is compressed, and damaged"),
    ],
)
def test_damaged_pairs_are_refused(name: str, content: str | bytes, fault: str, tmp_path: Path, root: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=rf"^{re.escape(str(file))}{re.escape(fault)}[^\n]*$"):
        prepare_corpus(DataConfig(pairs=file), root)
    assert [file for file in root.rglob("*") if file.is_file()] == []


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.tmx"])
def test_a_file_of_pairs_is_not_held_in_memory(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(formats_module, "_LONGEST", 2**12)
    src, tgt = "都" * 60, "capital " * 60
    row = {
        "a.tsv": f"{src}\t{tgt}",
        "a.csv": f'{src},"{tgt}\n"',
        "a.jsonl": f'{{"ja": "{src}", "en": "{tgt}"}}',
        "a.tmx": unit(ja=src, en=tgt),
    }
    rows = [row[name]] * 2000
    (tmp_path / name).write_text(tmx(*rows) if name == "a.tmx" else "\n".join(rows), encoding="utf-8")
    tracemalloc.start()
    assert all(pair == (src, tgt.strip()) for pair in pairs_in(tmp_path / name, JA_EN))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 2 * peak < (tmp_path / name).stat().st_size


# cleaning

OFF = CleanConfig(max_chars=None, max_length_ratio=None, drop_duplicates=False)


def cleaned(folder: Path, pairs: Pairs, config: CleanConfig, n_further: int = 0) -> tuple[Pairs, dict[str, int]]:
    into = ParallelFiles(folder / "kept.src", folder / "kept.tgt")
    counts = clean(written(folder, pairs), config, into, n_further)
    return pairs_of(into), counts


def test_each_rule_drops_what_it_names_and_is_reported(tmp_path: Path) -> None:
    good = [("京の都である", "it is the capital Kyo"), ("古い橋がある", "there is an old bridge")] * 3
    bad = [("", "nothing"), ("都", " \t"), ("都" * 40, "capital " * 20), ("京の都である橋がある", "OK")]
    kept, counts = cleaned(tmp_path, [*bad, *good], CleanConfig(max_chars=100, max_length_ratio=4.0))
    assert kept == good[:2]
    assert counts == {"empty": 2, "too long": 1, "length ratio": 1, "duplicate": 4, "kept": 2}
    assert cleaned(tmp_path, [*good, *bad], OFF)[0] == [*good, *bad[2:]]
    exact = [("都" * 5, "x" * 9), ("都" * 5, "y" * 10)]
    assert cleaned(tmp_path, exact, CleanConfig(9, None))[0] == exact[:1]
    with pytest.raises(ValueError, match=r"^cleaning leaves none of 2 pairs \(empty 1, too long 1\): loosen "):
        cleaned(tmp_path, [("", "capital"), ("古い都", "an old capital")], CleanConfig(5, None, drop_duplicates=False))


def test_the_ratio_is_measured_against_the_usual_one_of_pairs_that_count(tmp_path: Path) -> None:
    usual = [("都" * 10, "x" * 35)] * 6 + [("都" * 10, "x" * 139)] * 3  # an average would lie above
    odd = [("橋" * 10, "x" * 8), ("橋" * 10, "y" * 9), ("橋" * 10, "y" * 140), ("橋" * 10, "z" * 141)]
    too_long = [("橋" * 10, "x" * 500)] * 20
    for tgt in (1, 0):  # in both directions, and exactly at the bound
        pairs = [(pair[1 - tgt], pair[tgt]) for pair in usual + odd + too_long]
        kept, _ = cleaned(tmp_path, pairs, CleanConfig(400, max_length_ratio=4.0, drop_duplicates=False))
        assert [len(pair[tgt]) for pair in kept[9:]] == [9, 140]  # within 35 / 4 .. 35 * 4


def test_the_first_pairs_that_are_left_are_kept_and_further_text(tmp_path: Path) -> None:
    pairs = [("", "capital"), *((f"都{i}", f"capital {i}") for i in range(5))]
    for n_further, expected in ((0, [1, 2]), (1, [1, 2, 5])):
        assert cleaned(tmp_path, pairs, CleanConfig(max_pairs=2), n_further)[0] == [pairs[i] for i in expected]


# holding out

short = st.text("都京 ", max_size=3)
some_pairs = st.lists(st.tuples(short, short), max_size=60).map(lambda drawn: [*drawn, ("都", "京")])


@settings(max_examples=50)
@given(pairs=some_pairs, n_dev=st.integers(0, 3), n_test=st.integers(0, 3))
def test_no_held_out_pair_is_trained_on(pairs: Pairs, n_dev: int, n_test: int, tmp_path_factory: Folders) -> None:
    folder = tmp_path_factory.mktemp("text")
    files = written(folder, pairs)
    distinct = {frozenset(pair) for pair in stripped(files) if all(pair)}
    if len(distinct) <= 2 * (n_dev + n_test):
        with pytest.raises(ValueError, match=f"^held_out={max(n_dev, n_test)} is too many of {len(distinct)} distinct"):
            hold_out(text_module.read_pairs(files), n_dev, n_test)
        return
    try:
        chosen = hold_out(text_module.read_pairs(files), n_dev, n_test)
    except ValueError as error:
        assert "leaves no pair to train on without a line of the dev or test text" in str(error)  # noqa: PT017
        return
    write_split(files, *chosen, folder)
    rest, *held = (stripped(ParallelFiles.of(folder, split)) for split in ("train", *chosen[1]))
    assert [*map(len, held)] == [n for n in (n_dev, n_test) if n]
    held_sets = {frozenset(pair) for pairs in held for pair in pairs}
    assert len(held_sets) == n_dev + n_test  # neither twice nor in dev and test both, nor the other way round
    assert all(src and tgt for pairs in held for src, tgt in pairs)
    lines = {line for pair in held_sets for line in pair}
    assert rest == [pair for pair in stripped(files) if lines.isdisjoint(pair)]


def test_the_choice_is_as_good_as_random_and_always_the_same(tmp_path: Path) -> None:
    files = written(tmp_path, [(f"都{i}", f"capital {i}") for i in range(100)])
    _, held = hold_out(text_module.read_pairs(files), 20, 20)
    assert (
        hold_out(text_module.read_pairs(ParallelFiles(files.tgt, files.src)), 20, 20)[1] == held
    )  # in both directions
    assert min(held["dev"] + held["test"]) < 20 < 80 < max(held["dev"] + held["test"])
    # golden: runs from before are compared on these sentences, which are as they were
    files = written(tmp_path, [(f" 都{i}", f"capital {i} ") for i in range(12)])
    write_split(files, *hold_out(text_module.read_pairs(files), 3, 0), tmp_path)
    kept = pairs_of(ParallelFiles.of(tmp_path, "dev"))
    assert kept == [(" 都10", "capital 10 "), (" 都7", "capital 7 "), (" 都9", "capital 9 ")]


def test_what_was_trained_on_is_never_held_out_when_the_text_grows(tmp_path: Path) -> None:
    """A run is resumed, or fine-tuned, after lines were added anywhere."""
    old, new = ([(f"{word} {i}", f"京 {i}") for i in range(40)] for word in ("都", "新"))
    splits = []
    for i, pairs in enumerate((old, new[:20] + old + new[20:] + old[:3])):
        files = written(tmp_path, pairs, str(i))
        rest, held = hold_out(text_module.read_pairs(files), 8, 8)
        splits.append([{pairs[row] for row in rows} for rows in (rest.nonzero()[0].tolist(), *held.values())])
    (trained, dev, test), (_, later_dev, later_test) = splits
    assert not trained & (later_dev | later_test)
    assert not (dev & later_test)
    assert not (test & later_dev)
    assert dev != later_dev


# published corpora

TOY: Files = {
    "orig/toy-train.ja": "都\n京の都\n古い都\n".encode(),
    "orig/toy-train.en": b"capital\nthe capital Kyo\nan old capital\n",
    "orig/toy-dev.ja": "寺\n".encode(),
    "orig/toy-dev.en": b"temple\n",
    "orig/toy-test.ja": "橋\n川\n".encode(),
    "orig/toy-test.en": b"bridge\nriver\n",
    "tok/toy-test.ja": "橋\n川 。\n".encode(),
    "tok/toy-test.en": b"bridge\nriver .\n",
}
NEEDED = {path: content for path, content in TOY.items() if path.startswith("orig/")}


def git_hash(data: bytes) -> str:
    return sha1(b"blob %d\0%b" % (len(data), data)).hexdigest()


@pytest.fixture
def toy(monkeypatch: Patch) -> CorpusSpec:
    """A corpus of a few lines, made like the published ones; it stands for "tanaka" while the test runs."""
    spec = CorpusSpec(
        name="toy",
        homepage="http://toy.example",
        url="http://127.0.0.1:9/toy-1.0.tar.gz",
        download_mb=0.1,
        licence="CC0",
        text="sentences",
        languages=("ja", "en"),
        splits=("orig/toy-train.{lang}", "orig/toy-dev.{lang}", "orig/toy-test.{lang}"),
        hashes="".join(f"{path} {git_hash(data)}\n" for path, data in TOY.items()),
    )
    monkeypatch.setitem(CORPORA, "tanaka", spec)
    return spec


def write_tree(folder: Path, files: Files) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def write_tar(archive: Path, files: Files) -> Path:
    """Below top folders, as the published ones have."""
    folder = write_tree(archive.with_name(f"{archive.name}-content"), files)
    with tarfile.open(archive, f"w:{archive.suffix[1:]}" if archive.suffix != ".tar" else "w") as tar:  # type: ignore[call-overload]
        tar.add(folder, "toy-1.0/data")
    return archive


def files_in(folder: Path) -> Files:
    """All but the stamp."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".verified.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "corpus" / "toy"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_tar(tmp_path / "toy-1.0.tar.xz", TOY | {"README": b"read me"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "source", "src", "sizes"),
    [
        ("kftt", "kftt-data-1.0.tar.xz", "ja", [440_288, 1166, 1160]),
        ("tanaka", "small_parallel_enja.tar.xz", "ja", [50_000, 500, 500]),
        ("multi30k", "multi30k.tar.xz", "de", [29_000, 1014, 1000]),
        ("multi30k_tok", "multi30k.tar.xz", "de", [29_000, 1014, 1000]),
    ],
)
def test_real_archives(name: Any, source: str, src: str, sizes: list[int], root: Path, shared_data: Path) -> None:
    config = DataConfig(corpus=name, src_lang=src, archive=shared_data / source)
    corpus = prepare_corpus(config, root)
    assert sizes_of(corpus) == sizes
    spec = CORPORA[name]
    assert all((root / name / path).is_file() for path in spec.blobs if path not in spec.optional)
    installed = replace(config, archive=None)
    assert prepare_corpus(installed, root) == replace(corpus, data=installed)


@pytest.mark.parametrize(
    ("name", "ending"), [("toy.tar", ""), ("toy.tar.gz", ".gz"), ("toy.tar.xz", ""), (".", ""), ("toy-1.0/data", ".gz")]
)
def test_archives_and_folders_are_alike(name: str, ending: str, toy: CorpusSpec, tmp_path: Path, place: Path) -> None:
    files = {path + ending: gzip.compress(data) if ending else data for path, data in TOY.items()}
    files |= {"README": b"read me", "orig/my-toy-train.ja": b"1", "orig/toy-train.ja.000": b"2"}
    (given := tmp_path / "given").mkdir()
    made = (write_tar if ".tar" in name else write_tree)(given / name, files)
    install(toy, made if made.is_file() else given, place)
    assert files_in(place) == TOY
    assert [path.name for path in place.parent.iterdir()] == ["toy"]


def test_the_nearest_plain_file_is_taken_and_some_may_be_absent(toy: CorpusSpec, tmp_path: Path, place: Path) -> None:
    files = {"data/old/a": b"3", "old/a": b"2", "a": b"1", "a.gz": gzip.compress(b"4")}
    (tmp_path / "into").mkdir()
    take(write_tree(tmp_path / "given", files), ["a"], tmp_path / "into")
    assert files_in(tmp_path / "into") == {"a": b"1"}
    hashes = install(toy, write_tar(tmp_path / "orig.tar.gz", NEEDED), place)
    assert hashes == {path: git_hash(data) for path, data in NEEDED.items()} == install(toy, None, place)
    printed = subprocess.check_output(["git", "hash-object", place / "orig/toy-train.ja"], text=True)
    assert printed.strip() == hashes["orig/toy-train.ja"]
    assert files_in(place) == NEEDED


def tar_of(path: Path, *members: tuple[str, bytes, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, type_, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = type_, link, int(type_ == tarfile.REGTYPE)
            tar.addfile(info, io.BytesIO(b"x" * info.size))
    return path


@pytest.mark.parametrize(
    "evil",
    [
        ("../a", tarfile.REGTYPE, ""),
        ("toy/device", tarfile.CHRTYPE, ""),
        ("toy/link", tarfile.SYMTYPE, "../../../etc/passwd"),
        ("toy/a", tarfile.SYMTYPE, "secret"),
        ("toy/a", tarfile.LNKTYPE, "secret"),
    ],
    ids=lambda evil: f"{evil[0]} {evil[2]}".strip(),
)
def test_an_archive_with_an_unsafe_member_is_refused(evil: tuple[str, bytes, str], tmp_path: Path) -> None:
    archive, into, harmless = tmp_path / "toy.tar.gz", tmp_path / "into", ("toy/secret", tarfile.REGTYPE, "")
    into.mkdir()
    with pytest.raises(ValueError, match=r"toy\.tar\.gz is unsafe: its member '.*'"):
        take(tar_of(archive, harmless, evil, ("toy/a", tarfile.REGTYPE, "")), ["a"], into)
    assert {*tmp_path.iterdir()} == {archive, into}
    assert not files_in(into)
    take(tar_of(archive, (str(tmp_path / "outside" / "a"), tarfile.REGTYPE, "")), ["a"], into)
    assert files_in(into) == {"a": b"x"}  # the absolute path is not followed
    assert not (tmp_path / "outside").exists()


def test_what_is_not_the_whole_corpus_is_refused_in_one_line(toy: CorpusSpec, tmp_path: Path, place: Path) -> None:
    given = [write(tmp_path / "page.html", "<html>404</html>")]
    given.append(write_tree(tmp_path / "given", {"orig/toy-train.ja.gz": b"\n"}))
    for suffix, share in itertools.product((".tar.gz", ".tar.xz"), (0.05, 0.5, 0.95)):
        whole = write_tar(tmp_path / f"toy{suffix}", {"orig/a": Path(__file__).read_bytes()}).read_bytes()
        given.append(tmp_path / f"{share}{suffix}")
        given[-1].write_bytes(whole[: int(share * len(whole))])
    faults = dict.fromkeys(given, "is truncated, damaged or not a tar archive; get it again")
    faults[tmp_path / "nowhere.tar.gz"] = "no such archive or folder"
    faults[write_tar(tmp_path / "other.tar.gz", {"orig/other-train.ja": b"1\n"})] = "is not toy as published"
    for path, other in (("orig/toy-train.en", b"another text\n"), ("tok/toy-test.ja", "橋\n河 。\n".encode())):
        source = write_tar(tmp_path / f"{Path(path).name}.tar.gz", TOY | {path: other})
        faults[source] = f"toy: {path} has .* {git_hash(other)}, expected {git_hash(TOY[path])}: "
    for source, fault in faults.items():
        with pytest.raises(ValueError, match=rf"^[^\n]*{fault}[^\n]*$") as caught:
            install(toy, source, place)
        assert str(source) in str(caught.value)
    assert not place.parent.exists() or not list(place.parent.iterdir())


def test_a_verified_corpus_is_kept(toy: CorpusSpec, place: Path, archive: Path, monkeypatch: Patch) -> None:
    install(toy, archive, place)
    os.utime(place / "orig/toy-test.en", (1, 1))
    install(toy, None, place)  # hashed again, and stamped anew
    with monkeypatch.context() as patched:
        patched.setattr(corpus_module, "blob_hash", never)
        install(toy, None, place)
    (place / "orig/toy-test.en").write_bytes(b"brigde\nriver\n")  # of the same size
    with pytest.raises(ValueError, match=rf"^toy: orig/toy-test.en has git .*: delete {place} to have it fetched"):
        install(toy, archive, place)
    (place / "orig/toy-test.en").unlink()
    with pytest.raises(ValueError, match=r"^toy: orig/toy-test\.en is missing: delete"):
        install(toy, archive, place)
    (other := place.with_name("other")).mkdir()
    with pytest.raises(ValueError, match="was not installed by this command"):
        install(toy, archive, other)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: Patch) -> Iterator[str]:
    """Serves tmp_path/served; its address. Retries follow at once, and no proxy is asked for 127.0.0.1."""
    monkeypatch.setattr("pooch.core.time.sleep", lambda _: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http, ThreadPoolExecutor(1) as pool:
        pool.submit(http.serve_forever)
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def test_a_corpus_is_downloaded_and_verified(toy: CorpusSpec, tmp_path: Path, place: Path, server: str) -> None:
    served = write_tree(tmp_path / "served", TOY)  # one by one, or packed
    write_tree(served, {f"{path}.gz": gzip.compress(data) for path, data in TOY.items()})
    write_tar(served / "toy.tar.gz", TOY)
    for name, expected in ("toy.tar.gz", TOY), ("{file}", NEEDED), ("{file}.gz", NEEDED):
        install(replace(toy, url=f"{server}/{name}"), None, place.with_name(name))
        assert files_in(place.with_name(name)) == expected
    write_tar(served / "other.tar.gz", TOY | {"orig/toy-dev.en": b"shrine\n"})
    for url, fault in (
        (f"{server}/other.tar.gz", rf"^toy: orig/toy-dev\.en has git .*: {server}/other\.tar\.gz is not toy"),
        (f"{server}/gone.tar.gz", r"^could not fetch toy from http://127.*/gone\.tar\.gz \(404 Client Error"),
    ):
        with pytest.raises(ValueError, match=fault):
            install(replace(toy, url=url), None, place)
    assert len(list(place.parent.iterdir())) == 3
    install(replace(toy, url=f"{server}/{{file}}", more_sets={"more": "tok/toy-test.{lang}"}), None, place)
    assert files_in(place) == TOY


# which corpus a run uses


@pytest.fixture
def own(tmp_path: Path) -> ParallelFiles:
    """Twenty sentences of your own."""
    return written(tmp_path, [(f"都{i}\u2028\r", f"capital {i}") for i in range(20)], "own")


def sizes_of(corpus: Corpus) -> list[int]:
    return [len(read_parallel(files)) for files in (corpus.train, corpus.dev, corpus.test)]


@pytest.fixture
def few_embedded(monkeypatch: Patch) -> None:
    """The embedded corpus, of a few lines."""
    monkeypatch.setattr(embedded, "generate", lambda: {split: [(f"{split}都", f"{split} capital")] for split in SPLITS})


@pytest.mark.usefixtures("few_embedded", "toy")
def test_a_known_corpus_is_read_in_either_direction(root: Path, archive: Path) -> None:
    config = DataConfig(corpus="tanaka", archive=archive)
    corpus = prepare_corpus(config, root)
    assert read_parallel(corpus.test) == ParallelText(["橋", "川"], ["bridge", "river"])
    assert read_parallel(corpus.dev) == ParallelText(["寺"], ["temple"])
    assert prepare_corpus(replace(config, src_lang="en", tgt_lang="ja"), root) == corpus.reversed()
    english = prepare_corpus(DataConfig(corpus="embedded", src_lang="en", tgt_lang="ja"), root)
    assert read_parallel(english.dev) == ParallelText(["dev capital"], ["dev都"])
    alone = MonolingualConfig("tanaka", archive=archive)
    ja, en = (prepare_monolingual(replace(alone, language=language), root) for language in ("ja", "en"))
    assert (parts(ja), parts(en)[2]) == ([["都", "京の都", "古い都"], ["寺"], ["橋", "川"]], ["bridge", "river"])
    assert (ja.name, ja.language, en.language, ja.documents) == ("toy", "ja", "en", (("all", 3),))
    assert ja.fingerprint() != en.fingerprint()


@pytest.mark.usefixtures("server")
def test_the_remedy_without_a_network_prepares_the_corpus(root: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    for spec in CORPORA.values():
        with monkeypatch.context() as patched:
            patched.setitem(CORPORA, spec.name, replace(spec, url="http://127.0.0.1:9/x.tar.gz"))
            config = DataConfig(spec.name, *spec.languages)  # type: ignore[arg-type]  # one of the names
            with pytest.raises(ValueError, match=f"^--split foo: {spec.name} has dev, test"):
                prepare_to_score(config, root, "foo")
            with pytest.raises(ValueError, match=r"^could not fetch ") as caught:
                prepare_to_score(config, root)
        (line,) = re.findall("`python train.py (.*--dry-run)`", str(caught.value))
        options = read_arguments(line.replace("PATH", str(tmp_path)).split())
        assert isinstance(options.config, TranslationConfig)
        data = options.config.data
        assert (data.corpus, data.archive, options.dry_run) == (spec.name, tmp_path, True)
        assert {*data.languages} == {*spec.languages}


def test_another_set_may_be_copied_in_later(toy: CorpusSpec, root: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    hashes = toy.hashes + "orig/toy-old.ja\norig/toy-old.en\n"  # without a known hash
    more = {"tok": "tok/toy-test.{lang}", "old": "orig/toy-old.{lang}"}
    for name in ("tanaka", "toy"):  # by its setting, and by its own name
        monkeypatch.setitem(CORPORA, name, replace(toy, hashes=hashes, more_sets=more))
    texts = {"orig/toy-old.ja": "旧\n".encode(), "orig/toy-old.en": b"old\n"}
    config = DataConfig(corpus="tanaka", archive=write_tree(tmp_path / "given", NEEDED | texts))
    corpus = prepare_corpus(config, root)
    assert read_parallel(corpus.held_out("old")) == ParallelText(["旧"], ["old"])
    assert (corpus.held_out("dev"), corpus.held_out("test")) == (corpus.dev, corpus.test)
    assert corpus.reversed().held_out("old") == ParallelFiles(*reversed(corpus.held_out("old")))
    with pytest.raises(ValueError, match=r"^--split train: toy has dev, test, tok, old; give one of them$"):
        corpus.held_out("train")
    with pytest.raises(ValueError, match=r"^--split tok: .*tok/toy-test\.ja is missing.*: unpack toy-test\.ja and"):
        corpus.held_out("tok")
    (root / "toy" / "tok").mkdir()
    for path in CORPORA["tanaka"].optional[:2]:
        (root / "toy" / path).write_bytes(TOY[path])
    assert read_parallel(prepare_corpus(config, root).held_out("tok")).tgt == ["bridge", "river ."]


def test_a_result_says_what_was_rebuilt(toy: CorpusSpec, root: Path, archive: Path, monkeypatch: Patch) -> None:
    config = DataConfig(corpus="tanaka", archive=archive)
    for path, rebuilt in (("orig/toy-dev.en", False), ("orig/toy-train.en", True)):
        monkeypatch.setitem(CORPORA, "tanaka", replace(toy, rebuilt=(git_hash(TOY[path]),)))
        for corpus in prepare_corpus(config, root), prepare_monolingual(MonolingualConfig("tanaka"), root):
            result = facts(corpus.fingerprint(), corpus.rebuilt)
            assert result["fingerprint"] == corpus.fingerprint()
            assert ("extracted again" in result.get("training_text", "")) == rebuilt


def test_of_own_files_some_lines_are_held_out_once_for_each_content(own: ParallelFiles, root: Path) -> None:
    config = DataConfig(src=own.src, tgt=own.tgt, held_out=3)
    corpus = prepare_corpus(config, root)
    assert (corpus.name, sizes_of(corpus)) == ("files", [14, 3, 3])
    held = [line for files in (corpus.train, corpus.dev, corpus.test) for line in read_parallel(files).src]
    assert sorted(held) == sorted(read_parallel(own).src)
    assert prepare_corpus(config, root) == corpus
    assert sizes_of(prepare_corpus(replace(config, dev_src=own.src, dev_tgt=own.tgt), root)) == [17, 20, 3]
    own.tgt.write_text(own.tgt.read_text().replace("capital", "city"))
    after = prepare_corpus(config, root)
    assert after.fingerprint() != corpus.fingerprint()
    assert all("city" in line for line in read_parallel(after.test).tgt)


def test_pairs_in_one_file_are_the_same_corpus_as_in_two(own: ParallelFiles, root: Path, monkeypatch: Patch) -> None:
    files = written(own.src.parent, stripped(own))
    table = write(own.src.with_name("own.tsv"), "en\tja", *(f"{tgt}\t{src}" for src, tgt in pairs_of(own)))
    config = DataConfig(pairs=table, more_pairs=table, held_out=3)
    corpus = prepare_corpus(config, root)
    two = DataConfig(src=files.src, tgt=files.tgt, more_src=files.src, more_tgt=files.tgt, held_out=3)
    assert corpus.fingerprint() == prepare_corpus(two, root).fingerprint()
    monkeypatch.setattr("utils.dataset.corpus.pairs_in", None)
    assert prepare_corpus(config, root) == corpus
    held = prepare_corpus(replace(config, dev_pairs=table, test_pairs=table), root)
    assert sizes_of(held)[1:] == [20, 20]
    assert pairs_of(held.test) == pairs_of(files)
    with pytest.raises(ValueError, match=r"^dev_pairs and dev_src are given: set dev_pairs, or the others, to null$"):
        replace(config, dev_pairs=table, dev_src=own.src)


def test_to_score_own_training_files_may_be_gone(own: ParallelFiles, root: Path) -> None:
    gone = DataConfig(src=Path("gone.ja"), tgt=Path("gone.en"), more_src=Path("x"), more_tgt=Path("y"))
    config = replace(gone, dev_src=own.src, dev_tgt=own.tgt, test_src=own.src, test_tgt=own.tgt)
    assert prepare_to_score(config, root).test == own
    with pytest.raises(ValueError, match=r"^src=gone\.ja: no such file$"):
        prepare_to_score(replace(config, dev_src=None, dev_tgt=None), root)


def test_the_fingerprint_is_of_content_and_direction(own: ParallelFiles, root: Path) -> None:
    corpus = prepare_corpus(DataConfig(src=own.src, tgt=own.tgt, held_out=3), root)
    assert corpus.fingerprint() == "159ccf955c32cf9b" != corpus.reversed().fingerprint()  # golden: checkpoints have it
    for path in (*corpus.train, *corpus.dev, *corpus.test):
        before = corpus.fingerprint()
        path.write_bytes(path.read_bytes() + b"1")
        assert corpus.fingerprint() != before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tgt": None}, r"^src=.*own\.src is missing .*--data\.tgt FILE$"),
        ({"src": Path("nowhere.ja")}, r"^src=nowhere\.ja: no such file$"),
        ({"corpus": "kftt", "src": None, "tgt": None, "test_src": Path("x")}, r"^your own texts need a training text"),
        ({"archive": Path("a.tar")}, r"^archive=a\.tar is for published corpora \(kftt, "),
        ({"held_out": 0}, r"^held_out=0 leaves no dev and no test text"),
        ({"held_out": 5}, r"^held_out=5 is too many of 20 distinct pairs, .*: lower --data\.held_out"),
        ({"corpus": "kftt", "tgt_lang": "ja"}, r"^corpus=kftt has .*, not src_lang=ja to tgt_lang=ja: give"),
        ({"corpus": "embedded", "src_lang": "fr"}, r"^corpus=embedded has .*, not src_lang=fr to tgt_lang=en: give"),
        ({"corpus": "embedded", "pre_tokenized": True}, r"^pre_tokenized=true is for your own texts"),
    ],
)
def test_unfit_texts_are_refused(changes: dict[str, Any], message: str, own: ParallelFiles, root: Path) -> None:
    given = {} if changes.get("corpus") else {"src": own.src, "tgt": own.tgt}
    with pytest.raises(ValueError, match=message):
        prepare_corpus(DataConfig(**{"corpus": "files", **given, **changes}), root)
    assert not root.exists()


@pytest.mark.usefixtures("few_embedded")
def test_more_text_joins_any_training_text_but_not_what_is_scored_on(own: ParallelFiles, root: Path) -> None:
    """On neither side, whatever spaces are around it; an empty line is not scored on."""
    others = [(" dev capital ", "a"), ("b", "test都"), ("", "kept")]
    files = written(root.parent, [*((tgt, src) for src, tgt in pairs_of(own)), *others], "more")
    more: Any = {"more_src": files.src, "more_tgt": files.tgt}
    dev, ours = written(root.parent, [("dev都", "dev capital"), ("", "x")], "dev"), DataConfig(src=own.src, tgt=own.tgt)
    given = replace(ours, dev_src=dev.src, dev_tgt=dev.tgt, test_src=dev.src, test_tgt=dev.tgt)
    for config, n_added in (DataConfig("embedded"), 21), (replace(ours, held_out=3), 17), (given, 22):
        without, corpus = prepare_corpus(config, root), prepare_corpus(replace(config, **more), root)
        assert (corpus.name, corpus.dev, corpus.test) == (without.name, without.dev, without.test)
        assert read_parallel(corpus.train).src[:-n_added] == read_parallel(without.train).src
        assert read_parallel(corpus.train).tgt[-1] == "kept"
        assert corpus.further == (n_added, 23 - n_added)
        assert corpus.fingerprint() != without.fingerprint()
        assert prepare_corpus(replace(config, **more), root) == corpus


# checks of own texts

ENGLISH = ["The dog runs in the park.", "A man is on the street.", "The woman is in a house, and the dog is not."]
GERMAN = ["Der Hund läuft in dem Park.", "Ein Mann ist auf der Straße.", "Die Frau ist in einem Haus, der Hund nicht."]


@pytest.fixture
def german(tmp_path: Path) -> DataConfig:
    """English to German; four texts of three lines, none of which is in two of them."""
    files = {}
    for prefix in ("", "dev_", "test_", "more_"):
        for side, text in ("src", ENGLISH), ("tgt", GERMAN):
            name, title = prefix + side, prefix.title()[:-1]
            files[name] = write(tmp_path / name, *(f"{title}, {line}" for line in text))
    return DataConfig("files", "en", "de", **files)  # type: ignore[arg-type]


def remarks(data: DataConfig, root: Path) -> str:
    said: list[str] = []
    check_own_text(prepare_corpus(data, root), said.append)
    return "\n".join(said)


def test_swapped_sides_are_told_by_their_words(german: DataConfig, tmp_path: Path) -> None:
    for text in ("dev", "more"):
        src, tgt = f"{text}_src", f"{text}_tgt"
        swapped: Any = {src: getattr(german, tgt), tgt: getattr(german, src)}
        with pytest.raises(ValueError, match=rf" has the words of .*: are --data.{src} and --data.{tgt} swapped\?$"):
            remarks(replace(german, **swapped), tmp_path)
    assert remarks(replace(german, more_src=german.tgt), tmp_path) == ""  # one side alone is not swapped


def test_the_columns_that_are_read_are_told_where_a_table_does_not_name_them(tmp_path: Path) -> None:
    table = write(tmp_path / "a.tsv", *(f"{i}\t寺{i}\ttemple {i}" for i in range(9)))
    data = DataConfig(corpus="files", pairs=table, held_out=1)
    read = "column 2 is read as ja, column 3 is read as en"
    assert remarks(data, tmp_path) == f"{table} does not name its columns: {read}"
    write(table, "id\tja\ten", *lines(table))
    assert remarks(data, tmp_path) == ""


def test_a_text_is_not_its_own_translation(german: DataConfig, tmp_path: Path) -> None:
    copy = write(tmp_path / "copy", *lines(german.dev_src))  # type: ignore[arg-type]
    for prefix, file in ("", german.src), ("dev_", copy), ("more_", german.more_src):
        same: Any = {f"{prefix}src": file, f"{prefix}tgt": german.dev_src if file == copy else file}
        with pytest.raises(ValueError, match=f"^{prefix}src=.* and {prefix}tgt=.*: both sides have the same content"):
            prepare_corpus(replace(german, **same), tmp_path)
    write(german.tgt, *lines(german.src)[:2], lines(german.tgt)[2])  # type: ignore[arg-type]
    assert remarks(german, tmp_path) == f"67% of the lines of {german.src} are their own translations: is that right?"


def test_text_that_is_not_tokenized_as_is_said_is_remarked_on(german: DataConfig, tmp_path: Path) -> None:
    said = replace(german, pre_tokenized=True)
    assert remarks(german, tmp_path) == ""
    assert remarks(said, tmp_path).startswith(f"{german.dev_tgt} does not look tokenized")
    for file in tmp_path.glob("*_???"):
        write(file, *(line.replace(".", " .").replace(",", " ,") for line in lines(file)))
    assert remarks(said, tmp_path) == ""
    assert remarks(german, tmp_path).startswith(f"{german.dev_tgt} looks tokenized: give --data.pre_tokenized true")


# what is made once


def never(_: Any) -> NoReturn:
    raise AssertionError("made or said without need")


def filled(folder: Path) -> None:
    (folder / "a").write_bytes(b"capital")
    (folder / "empty").write_bytes(b"")


@pytest.mark.parametrize(
    ("file", "content"),
    [("a", None), ("a", b"capita"), ("a", b"capitaL"), ("checksums.json", None), ("checksums.json", b"{")],
)
def test_a_folder_is_made_once_and_repaired(tmp_path: Path, file: str, content: bytes | None) -> None:
    path, said = cache.cached(tmp_path / "cache" / "x", filled, never), list[str]()
    assert cache.cached(path, never, never) == path
    if content is None:
        (path / file).unlink()
    else:
        (path / file).write_bytes(content)
    cache.cached(path, filled, said.append)
    assert said == [f"{path} is damaged: rebuilding it"]
    assert cache.cached(path, never, never)


@pytest.mark.parametrize("removes", [False, True])
def test_who_comes_second_waits(tmp_path: Path, removes: bool) -> None:
    begun, go, path = threading.Event(), threading.Event(), tmp_path / "x"

    def slow(made: Path) -> None:
        begun.set()
        go.wait(120)
        filled(made)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(cache.cached, path, slow, never)
        assert begun.wait(120)
        second = pool.submit(cache.remove_cached, path) if removes else pool.submit(cache.cached, path, never, never)
        with pytest.raises(TimeoutError):
            second.result(0.1)
        go.set()
        assert [job.exception() for job in (first, second)] == [None, None]
    assert path.exists() is not removes


def test_a_file_is_hashed_once_until_it_changes(tmp_path: Path, monkeypatch: Patch) -> None:
    path = write(tmp_path / "a", "capital")
    before = cache.file_hash(path)
    with monkeypatch.context() as patched:
        patched.setattr(hashlib, "file_digest", never)
        assert cache.file_hash(path) == before
    path.with_name("b").write_text("CAPITAL\n")  # of the same size and time, as `cp -p` and archives leave it
    os.utime(path.with_name("b"), ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    path.with_name("b").replace(path)
    assert cache.file_hash(path) == hashlib.sha256(b"CAPITAL\n").hexdigest() != before


# ids


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.int32)])
def test_an_array_gives_back_what_it_got(vocab_size: int, dtype: type, tmp_path: Path) -> None:
    parts = [[[4, 5], []], [], [[vocab_size - 1], [], [7] * 5]]
    whole = [sequence for part in parts for sequence in part]
    ids.write_tokens(tmp_path / "side", vocab_size, parts)
    for array in TokenArray.of(whole, vocab_size), TokenArray.load(tmp_path / "side"):
        assert ids_of(array) == whole
        assert array[0].dtype == np.dtype(dtype)
        assert array.lengths.tolist() == [2, 0, 1, 0, 5]
        gathered, lengths = array.gather(np.array([4, 2, 1, 2]))
        assert gathered.tolist() == [7] * 5 + [vocab_size - 1] * 2
        assert lengths.tolist() == [5, 1, 0, 1]


LINES = {
    "train.src": ["古い 都", "京 の 都", "京 の 都", "寺", "", "寺 寺 寺 寺 寺 寺 寺"],
    "train.tgt": ["an old capital", "the capital Kyo", "the capital Kyo", "temple", "nothing", "x"],
    "dev.src": ["寺", "寺", "", "古い 川"],
    "dev.tgt": ["temple", "temple", "an", "an old River"],
    "test.src": ["都"],
    "test.tgt": ["capital"],
}
KEPT = [0, 1, 3]
DATA = DataConfig(clean=CleanConfig(max_length_ratio=3.0))
WORDS = TokenizerConfig("word", min_freq=1, joint=False)


@pytest.fixture
def corpus(tmp_path: Path, root: Path) -> Corpus:
    for name, text in LINES.items():
        write(tmp_path / name, *text)
    train, dev, test = (ParallelFiles(tmp_path / f"{split}.src", tmp_path / f"{split}.tgt") for split in SPLITS)
    return Corpus("toy", DATA, train, dev, test, root)


def words(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.tokens(range(4, len(tokenizer)))


def everything(corpus: Corpus, config: TokenizerConfig, log: Any) -> list[Any]:
    tokenizers = cached_tokenizers(corpus, config, log)
    pairs = [cached_tokens(corpus, split, tokenizers, log) for split in SPLITS]
    return [[words(tokenizer) for tokenizer in tokenizers], [[ids_of(side) for side in pair] for pair in pairs]]


def test_ids_are_those_of_encoding_now_and_made_once(corpus: Corpus) -> None:
    said: list[str] = []
    first = everything(corpus, WORDS, said.append)
    assert everything(corpus, WORDS, never) == first
    # of the cleaned training text alone
    assert first[0] == [["都", "古い", "京", "の", "寺"], ["capital", "an", "old", "the", "Kyo", "temple"]]
    tokenizers = cached_tokenizers(corpus, WORDS, never)
    for split, sides in zip(SPLITS, first[1], strict=True):
        for side, tokenizer, encoded in zip(("src", "tgt"), tokenizers, sides, strict=True):
            text = LINES[f"{split}.{side}"]
            assert encoded == tokenizer.encode([text[i] for i in KEPT] if split == "train" else text)
    pairs = cached_tokens(corpus, "test", tokenizers, never)
    assert isinstance(pairs.src[0], np.memmap)
    assert not pairs.src[0].flags.writeable
    assert "duplicate              1   16.67%" in said[0]
    assert said[1] == ("  it has lines of the dev text, whose scores flatter the model: 2 pairs, 3 sources, 2 targets")
    assert said[2].startswith("Learning the vocabulary (word) from 3 lines")
    assert said[3:] == [f"Encoding {n} lines of toy-{split} (once)" for n, split in zip((3, 4, 1), SPLITS, strict=True)]


def test_a_dev_text_whose_sides_differ_in_length_is_refused_before_it_is_encoded(corpus: Corpus) -> None:
    write(corpus.dev.src, "寺")
    with pytest.raises(ValueError, match=r"dev\.src has 1 lines but .*dev\.tgt has 4: line i of one must translate"):
        everything(corpus, WORDS, quiet)


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize(("tag", "more_tag"), [(None, "bt"), ("law", "bt"), ("law", None), ("law", "law")])
def test_further_text_has_its_tag(
    corpus: Corpus, tag: str | None, more_tag: str | None, rate: float, monkeypatch: Patch
) -> None:
    """Of three lines that cleaning leaves, two are further text: from the middle of the first block on."""
    said: list[str] = []
    monkeypatch.setattr(text_module, "BLOCK", 2)
    data = replace(DATA, tag=tag, more_tag=more_tag, more_src=Path("more.src"), more_tgt=Path("more.tgt"))
    untagged, config = (
        replace(corpus, further=FurtherText(5, 2)),
        TokenizerConfig("bpe", 60, character_coverage=1.0, tag=True),
    )
    corpus = replace(untagged, data=data)
    vocabulary = cached_tokenizers(corpus, config, said.append)
    assert sum("with 5 further pairs; 2 were left out" in line for line in said) == 1
    known = id_of_each(vocabulary.tgt)
    both = (untagged, corpus, "en"), (untagged.reversed(), corpus.reversed(), "ja")
    for without, tagged, language in both:
        tokenizers = vocabulary.into(language)
        plain = training_tokens(without, tokenizers, rate, 1, quiet)(0)
        ids_with_tags = training_tokens(tagged, tokenizers.with_tag(tag), rate, 1, quiet)(0)
        assert ids_of(ids_with_tags.tgt) == ids_of(plain.tgt)
        begins = [[known[f"<2{language}>"], *([known[f"<{name}>"]] if name else [])] for name in (tag, *[more_tag] * 2)]
        assert ids_of(ids_with_tags.src) == [[*b, *row[1:]] for b, row in zip(begins, ids_of(plain.src), strict=True)]


def edited(name: str, corpus: Corpus) -> Corpus:
    path = corpus.train.src.with_name(name)
    write(path, *(line.replace("都", "橋").replace("capital", "bridge") for line in lines(path)))
    return corpus


@pytest.mark.parametrize(
    ("change", "config"),
    [
        *((partial(edited, name), WORDS) for name in ("train.src", "test.tgt")),
        (Corpus.reversed, WORDS),
        (partial(replace, data=replace(DATA, clean=replace(DATA.clean, drop_duplicates=False))), WORDS),
        (replace, replace(WORDS, lowercase=True)),
    ],
)
def test_what_a_change_affects_is_made_anew(corpus: Corpus, root: Path, change: Any, config: TokenizerConfig) -> None:
    first = everything(corpus, WORDS, quiet)
    other = everything(change(corpus), config, quiet)
    assert first != other == everything(change(replace(corpus, root=root / "fresh")), config, quiet)


# sub-word sampling

SUBWORDS = TokenizerConfig("unigram", 40, character_coverage=1.0)


@pytest.fixture
def long_corpus(tmp_path: Path, root: Path, small_blocks: None) -> Corpus:  # noqa: ARG001 (a fixture)
    """Pairs enough for several blocks, some of which are dropped."""
    text = [f"the old capital of {n} and the capitals of {n * 7}" for n in range(60)]
    files = written(tmp_path, [(line, "" if n % 9 == 4 else line[::-1]) for n, line in enumerate(text)], "long")
    return Corpus("toy", replace(DATA, src_lang="en", tgt_lang="ne"), files, files, files, root)


def sampled(
    corpus: Corpus, kind: Any = "unigram", seed: int = 1, rate: float = 0.3, clean: CleanConfig = DATA.clean
) -> tuple[TokenizerPair, Callable[[int], TokenPairs]]:
    tokenizers = cached_tokenizers(corpus, replace(SUBWORDS, kind=kind), quiet)
    corpus = replace(corpus, data=replace(corpus.data, clean=clean))
    return tokenizers, training_tokens(corpus, tokenizers, rate, seed, quiet)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_seed_and_epoch_fix_a_segmentation(long_corpus: Corpus, tmp_path: Path, kind: str, monkeypatch: Patch) -> None:
    def segmented(name: str, epochs: list[int], **options: Any) -> list[list[int]]:
        _, tokens = sampled(replace(long_corpus, root=tmp_path / name), kind, **options)
        return [ids_of(tokens(epoch).src) for epoch in epochs][-1]

    corpus = replace(long_corpus, root=tmp_path / "straight")
    tokenizers, tokens = sampled(corpus, kind)
    straight = cached_tokens(corpus, "train", tokenizers, quiet)
    for first, second, likeliest, tokenizer in zip(tokens(0), tokens(1), straight, tokenizers, strict=True):
        text = tokenizer.decode(ids_of(likeliest))
        assert tokenizer.decode(ids_of(first)) == tokenizer.decode(ids_of(second)) == text
        assert ids_of(first) != ids_of(second)
        assert min(first.lengths.sum(), second.lengths.sum()) > likeliest.lengths.sum()
    assert ids.Sampling(0.1, 7, 2).block_seed(0, 0) == 4247664741  # golden: resumed runs sample on
    numbers = itertools.product((1, 11), (1, 11), (1, 11), (0, 1))
    assert len({ids.Sampling(0.1, seed, epoch).block_seed(block, side) for seed, epoch, block, side in numbers}) == 16
    expected = segmented("straight", [0, 1, 2])
    assert segmented("resumed", [2]) == expected
    assert segmented("straight", [2]) == expected  # from the disk
    for options in ({"seed": 2}, {"rate": 0.05}):
        assert segmented("straight", [2], **options) != expected
    few = replace(DATA.clean, max_pairs=5)
    assert len(segmented("straight", [2], clean=few)) == 5
    if kind == "unigram":
        monkeypatch.setattr(ids, "_WORTH_PROCESSES", 1)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        assert segmented("processes", [2]) == expected


def test_a_killed_process_is_said_so_in_one_line(long_corpus: Corpus, monkeypatch: Patch) -> None:
    monkeypatch.setattr(ids, "_WORTH_PROCESSES", 1)
    monkeypatch.setattr(ProcessPoolExecutor, "map", lambda pool, *_: [pool.submit(os._exit, 1).result()])
    with pytest.raises(ValueError, match=r"^a process that encodes text was killed: is there enough memory for \d+"):
        sampled(long_corpus)[1](0)


def test_ids_of_the_next_epoch_are_made_meanwhile(long_corpus: Corpus, tmp_path: Path, monkeypatch: Patch) -> None:
    expected = ids_of(sampled(replace(long_corpus, root=tmp_path / "other"))[1](1).src)
    tokenizers = cached_tokenizers(long_corpus, SUBWORDS, quiet)
    said: list[str] = []
    tokens = training_tokens(long_corpus, tokenizers, 0.3, 1, said.append, ahead=True)

    def meanwhile(epoch: int) -> list[list[int]]:
        before = {*threading.enumerate()}
        sources = ids_of(tokens(epoch).src)
        for thread in {*threading.enumerate()} - before:
            thread.join(60)
        return sources

    meanwhile(0)
    monkeypatch.setattr(ids, "_encoded", Mock(side_effect=OSError("no space left")))
    assert meanwhile(1) == expected
    assert [line.partition("(")[2] for line in said if "Encoding" in line] == ["sampling sub-words for epoch 1)"]
    with pytest.raises(OSError, match="no space left"):
        tokens(2)


def test_ids_of_an_epoch_are_kept_until_a_later_one(long_corpus: Corpus, root: Path, monkeypatch: Patch) -> None:
    _, tokens = sampled(long_corpus)
    sampled(long_corpus, seed=2)[1](0)
    first = tokens(0)
    before = ids_of(first.src)
    for epoch, expected in ((0, ["0", "0"]), (1, ["0", "1"]), (10, ["0", "10"]), (9, ["0", "10", "9"])):
        tokens(epoch)
        assert sorted(path.name.rsplit("-", 1)[1] for path in (root / "cache").glob("*sampled*")) == expected
    assert ids_of(first.src) == before  # a process that still reads them can
    expected_ids, load, removed = ids_of(tokens(9).src), TokenPairs.load, list[Path]()

    def removed_first(folder: Path) -> TokenPairs:  # by another training, which is epochs ahead
        if not removed:
            removed.append(folder)
            cache.remove_cached(folder)
        return load(folder)

    monkeypatch.setattr(TokenPairs, "load", removed_first)
    assert ids_of(tokens(9).src) == expected_ids


# one text, and its documents


@pytest.mark.usefixtures("small_blocks")
def test_lines_of_one_text_are_encoded_once_by_a_tokenizer_learned_once(tmp_path: Path, root: Path) -> None:
    text = write(tmp_path / "text.ja", *["京 の 都", "", "古い 都", " ", "都 の 寺 の 寺"] * 5)
    config, said = TokenizerConfig("word", min_freq=1), list[str]()
    for _ in range(2):
        learned = cached_tokenizer("toy", text, replace(config, joint=not config.joint), said.append, root)
        assert words(learned) == words(train_tokenizer(config, TextLines(text)))
        assert ids_of(ids.cached_lines("toy-train", text, learned, said.append, root)) == learned.encode(lines(text))
    assert [line.split(" (")[0] for line in said] == ["Learning the vocabulary", "Encoding 25 lines of toy-train"]
    other = WordTokenizer(words(learned)[::-1], lowercase=False)
    for content in lines(text), ["橋"]:
        write(text, *content)
        assert ids_of(ids.cached_lines("toy-train", text, other, quiet, root)) == other.encode(content)
    with pytest.raises(ValueError, match=r"^sampling=0\.1 is for pairs of texts: set tokenizer\.sampling to 0$"):
        cached_tokenizer("toy", text, TokenizerConfig("bpe", sampling=0.1), quiet, root)


def test_a_vocabulary_smaller_than_asked_for_is_said(tmp_path: Path) -> None:
    """A unigram model takes only pieces that are worth it; said each time, though it is learned once."""
    text, said, config = write(tmp_path / "text", *["ab ab abc"] * 200), list[str](), TokenizerConfig(vocab_size=300)
    sizes = [len(cached_tokenizer("toy", text, config, said.append, tmp_path)) for _ in range(2)]
    assert max(sizes) < 300
    assert said[1:] == [f"The text is worth no more than {n} pieces of tokenizer.vocab_size=300" for n in sizes]


def test_documents_are_read_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "kyoto.docs", "BDS00001\t62", "the old capital  7", "", "BDS00005 0")
    assert read_documents(path) == (("BDS00001", 62), ("the old capital", 7), ("BDS00005", 0))
    for line in ("62", "BDS00001 -3", "BDS00001 ２"):
        write(path, "BDS00001 62", line)
        with pytest.raises(ValueError, match=rf"^{path}, line 2: '{line}' is not the name of a document and its numb"):
            read_documents(path)


@pytest.fixture
def one_text(tmp_path: Path) -> Path:
    return write(tmp_path / "own.ja", *(f"都 {i}" for i in range(20)))


def documents_of(tmp_path: Path, *counts: int) -> Path:
    return write(tmp_path / "own.docs", *(f"D{i} {n}" for i, n in enumerate(counts)))


def parts(corpus: MonolingualCorpus) -> list[list[str]]:
    return [lines(path) for path in (corpus.train, corpus.dev, corpus.test)]


@pytest.mark.parametrize(
    ("counts", "held_out", "n_dev", "n_test"),
    [((20,), 3, 3, 3), ((20,), 5, 5, 5), ((6, 5, 2, 2, 5), 3, 4, 5)],  # of several, whole documents
)
def test_the_end_of_a_text_is_held_out(
    tmp_path: Path, one_text: Path, root: Path, counts: tuple[int, ...], held_out: int, n_dev: int, n_test: int
) -> None:
    config = MonolingualConfig(text=one_text, held_out=held_out, documents=documents_of(tmp_path, *counts))
    corpus, whole, n = prepare_monolingual(config, root), lines(one_text), 20 - n_dev - n_test
    assert parts(corpus) == [whole[:n], whole[n : n + n_dev], whole[n + n_dev :]]
    assert sum(document.n_lines for document in corpus.documents) == n
    assert prepare_monolingual(config, root) == corpus
    with pytest.raises(ValueError, match=rf"^held_out=6 is too many of 20 lines in {len(counts)} documents"):
        prepare_monolingual(replace(config, held_out=6), root)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": None, "corpus": "embedded", "language": "de"}, r"^corpus=embedded has ja and en, not language=de$"),
        ({"text": None, "dev_text": Path("x")}, r"^corpus=files needs a training text"),
        ({"test_text": Path("x")}, "^test_text=x: no such file$"),
        ({"archive": Path("x")}, r"^archive=x is for published corpora"),
        ({"documents": Path("x")}, "^no such file: x$"),
        ({"held_out": 0}, r"^held_out=0 leaves no dev and no test text"),
    ],
)
def test_unfit_monolingual_texts_are_refused(changes: dict[str, Any], message: str, one_text: Path, root: Path) -> None:
    with pytest.raises(ValueError, match=message):
        prepare_monolingual(MonolingualConfig(**{"text": one_text, **changes}), root)


def test_a_monolingual_fingerprint_is_of_texts_and_documents(tmp_path: Path, one_text: Path, root: Path) -> None:
    config = MonolingualConfig(text=one_text, dev_text=one_text, test_text=one_text)
    other, docs = write(tmp_path / "other", "".join(lines(one_text))), documents_of(tmp_path, 9, 11)
    changes: dict[str, Any] = {"dev_text": other, "test_text": other, "text": other, "documents": docs}
    prints = [prepare_monolingual(config, root).fingerprint()]
    prints += [prepare_monolingual(replace(config, **{name: changes[name]}), root).fingerprint() for name in changes]
    assert len(set(prints)) == 5
    assert prints[0] == "3802c99bf67708b3"  # golden: checkpoints have it


def test_tokens_are_of_the_split_and_its_documents(tmp_path: Path, root: Path) -> None:
    text = write(tmp_path / "own", "都 1", "", "都 2", "都 3", "", *["都 4"] * 5)
    config = MonolingualConfig(text=text, dev_text=text, test_text=text, documents=documents_of(tmp_path, 3, 1, 1, 5))
    corpus = prepare_monolingual(config, root)
    tokenizer = corpus.tokenizer(TokenizerConfig("word", min_freq=2), quiet)
    train, dev = (corpus.tokens(split, tokenizer, quiet) for split in ("train", "dev"))
    assert (words(tokenizer), train.bounds.tolist(), dev.bounds.tolist()) == (["都", "4"], [0, 2, 3, 8], [0, 8])
    assert [train.lines[int(train.rows[i])].tolist() for i in (1, 7)] == [[4, 1], [4, 5]]


# labels


def test_labels_are_numbered_in_sorted_order_and_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "train", "寺", "old capital ", "Kyoto", "寺")
    names = LabelNames.of(path)
    assert (tuple(names), names.numbers(path).tolist()) == (("Kyoto", "old capital", "寺"), [2, 1, 0, 2])
    names.save(tmp_path / "labels.json")
    assert LabelNames.load(tmp_path / "labels.json") == names
    with pytest.raises(ValueError, match=rf"^{path}, line 2: label 'x' is not among .*: Kyoto, old capital, 寺$"):
        names.numbers(write(path, "寺", "x"))
    with pytest.raises(ValueError, match=rf"^{path}, line 2 has no label"):
        names.numbers(write(path, "寺", " ", "寺"))
    with pytest.raises(ValueError, match=rf"^{path} has only one label, 'a': give at least two$"):
        LabelNames.of(write(path, "a", "a"))


def test_texts_are_encoded_with_their_labels(tmp_path: Path, root: Path) -> None:
    text, labels = write(tmp_path / "x.text", "都 寺", "", "橋 都"), write(tmp_path / "x.labels", "b", "a", "b")
    given = LabelNames.of(labels), WordTokenizer(["都", "寺"], lowercase=False), quiet, root
    labelled = LabelledText.cached(text, labels, *given)
    assert (ids_of(labelled.lines), labelled.labels.tolist()) == ([[4, 5], [], [1, 4]], [1, 0, 1])
    with pytest.raises(ValueError, match=rf"^{text} has 3 lines but {labels} has 2: line i of one must be the label"):
        LabelledText.cached(text, write(labels, "b", "a"), *given)


def test_the_fingerprint_of_labelled_text_is_of_all_six_files(tmp_path: Path) -> None:
    files = [write(tmp_path / name, "a") for name in "abcdef"]
    config, prints = LabelledConfig(*files), list[str]()
    for file in files:
        prints.append(fingerprint(config))
        write(file, "bb")
    assert prints[0] == "baa56467da8b8b67"  # golden: checkpoints have it
    assert len({*prints, fingerprint(config)}) == 7
    files[3].unlink()
    with pytest.raises(ValueError, match=rf"^no such file: {files[3]}; docs/results\.md"):
        text_pairs(config)


def test_the_recipe_of_the_docs_puts_no_article_in_two_splits(tmp_path: Path, monkeypatch: Patch) -> None:
    articles = tuple(Document(f"{label}{i:05}", 1 + (7 * i) % 5) for i in range(150) for label in ("BDS", "HST"))
    text = write(tmp_path / "text", *(f"{article.name} {i}" for article in articles for i in range(article.n_lines)))
    corpus = MonolingualCorpus("kftt", "ja", text, text, text, articles, pre_tokenized=False)
    monkeypatch.setattr(monolingual, "prepare_monolingual", lambda _: corpus)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M)
    exec(recipe, {})
    splits = {split: lines(tmp_path / f"corpus/kftt-category-ja/{split}.text") for split in SPLITS}
    for split, sentences in splits.items():
        labels = lines(tmp_path / f"corpus/kftt-category-ja/{split}.labels")
        assert labels == [line[:3] for line in sentences]
        assert split == "train" or all(0.01 < labels.count(label) / 450 < 0.03 for label in ("BDS", "HST"))
    assert sorted(itertools.chain(*splits.values())) == sorted(lines(text))
    seen = [{line.split()[0] for line in sentences} for sentences in splits.values()]
    assert sum(map(len, seen)) == len(articles)


# the embedded corpus, and Multi30k as in seq2seq


CONSTRUCTIONS = read_constructions()
Sentences = dict[str, list[Pair]]


@pytest.fixture(scope="module")
def grammar_corpus() -> Sentences:
    return embedded.generate()


def items_in(pairs: list[Pair]) -> list[set[str]]:
    """The words that each Japanese sentence shows, read from left to right, the longest first; numbers whole."""
    items = {str(word["ja"]) for c in CONSTRUCTIONS for slot in c.slots.values() for word in slot}
    names = sorted((item for item in items if not item.isdigit()), key=len, reverse=True)
    scanner = re.compile("|".join([r"\d+", *names]))
    return [set(scanner.findall(ja)) for ja, _ in pairs]


def test_the_corpus_is_as_ever(grammar_corpus: Sentences) -> None:
    """The slow tests below say what is good about it."""
    assert crc32(str(grammar_corpus).encode()) == 948033463  # in every process: a set's order depends on its hash seed
    assert {split: len(pairs) for split, pairs in grammar_corpus.items()} == {"train": 20_000, "dev": 500, "test": 500}
    pairs = [pair for split in grammar_corpus.values() for pair in split]
    assert all(len({pair[side] for pair in pairs}) == 21_000 for side in (0, 1))
    assert [pair for pair in pairs if re.search(r"[{}]|None|\b[Aa] [aeiou]|  ", " ".join(pair))] == []
    readme = ("京都は日本の古都である。", "Kyoto is an old capital of Japan."), ("雨が降っています。", "It is raining.")
    assert {*readme} <= {*grammar_corpus["train"]}


@pytest.mark.slow
def test_no_sentence_of_the_whole_grammar_has_two_translations() -> None:
    english: dict[str, str] = {}
    japanese: dict[str, str] = {}
    for construction in CONSTRUCTIONS:
        for index in range(0, construction.capacity, 1 + construction.capacity // 1_000):
            fillers = construction.fillers(index)
            if len({word["ja"] for word in fillers.values()}) == len(fillers):
                ja, en = construction.render(fillers)
                assert english.setdefault(ja, en) == en
                assert japanese.setdefault(en, ja) == ja


@pytest.mark.slow
def test_every_held_out_sentence_joins_two_words_that_meet_nowhere_else(grammar_corpus: Sentences) -> None:
    """Read from the sentences alone: neither the hash nor the slots of the generator are asked."""
    met = {s: [{frozenset(two) for two in combinations(i, 2)} for i in items_in(p)] for s, p in grammar_corpus.items()}
    for split, other in (("dev", "test"), ("test", "dev")):
        elsewhere = set().union(*met["train"], *met[other])
        assert [
            pair for pair, joined in zip(grammar_corpus[split], met[split], strict=True) if joined <= elsewhere
        ] == []


@pytest.fixture(scope="module")
def pairs() -> dict[str, list[MinimalPair]]:
    return embedded.minimal_pairs()


PHENOMENA = {
    "who did it": None,  # the same words in another order
    "which is more": None,
    "from where": None,
    "negation": r"went > did not go|did not go > went",
    "number": r"(\w+) > \1e?s|(\w+?)e?s > \2",
    "tense": r"is > was|was > is",
    "numerals": r"(?=\S)(\d*) ?(\d*) > (?=\S)(\d*) ?(\d*)",
    "relative clauses": r"(he|she|I) > (he|she|I)",
    "new combinations": r"[^\d>]+ > [^\d>]+",
}


def spelled(en: str) -> str:
    return re.sub(r"(?<!\S)an ", "a ", en.lower())


@pytest.mark.parametrize("name", PHENOMENA)
def test_a_minimal_pair_differs_in_its_phenomenon_alone(name: str, pairs: dict[str, list[MinimalPair]]) -> None:
    assert (list(pairs), len(pairs[name])) == (list(PHENOMENA), 100 if name == "who did it" else 200)
    for _, *sides in pairs[name]:
        right, wrong = (re.findall(r"\w+|\W", spelled(side)) for side in sides)
        assert right != wrong
        if (said := PHENOMENA[name]) is None:
            assert sorted(right) == sorted(wrong)
            continue
        while right[0] == wrong[0]:
            del right[0], wrong[0]
        while right[-1] == wrong[-1]:
            del right[-1], wrong[-1]
        assert re.fullmatch(said, f"{''.join(right)} > {''.join(wrong)}".replace(":", " "), re.IGNORECASE), sides


def test_right_sides_are_the_grammars_own(pairs: dict[str, list[MinimalPair]], grammar_corpus: Sentences) -> None:
    rng = random.Random(1)  # as they are drawn
    drawn = [(construction, embedded.draw(construction, rng)) for construction in CONSTRUCTIONS]
    made_of = {c.render(f)[0]: (c, f) for c, splits in drawn for fillers in splits.values() for f in fillers}
    for name, (source, right, wrong) in ((name, pair) for name, of_one in pairs.items() for pair in of_one):
        construction, fillers = made_of[source]
        assert construction.render(fillers) == (source, right)
        assert (source, right) not in grammar_corpus["train"]
        assert sentence_split(fillers) == ("test" if name == "new combinations" else "train")
        if name in ("numerals", "new combinations"):  # the wrong one has another word in one slot
            changed = (
                (str(fillers[slot].get("en")), str(word.get("en")), {**fillers, slot: word})
                for slot, words in construction.slots.items()
                for word in words
                if str(word.get("en")).lower() in wrong.lower()
            )
            ((old, new, others),) = (change for change in changed if construction.render(change[2])[1] == wrong)
            assert sentence_split(others) == "train"
            assert spelled(wrong) == re.sub(rf"\b{old}\b".lower(), new.lower(), spelled(right))


@pytest.mark.usefixtures("few_embedded")
def test_the_files_hold_the_corpus_and_are_written_anew_only_when_need_be(tmp_path: Path) -> None:
    embedded.write_embedded(tmp_path)
    written = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert len(written) == 7
    assert (written["kyoto-dev.ja"], written["kyoto-dev.en"]) == ("dev都\n", "dev capital\n")
    for name, content in ("kyoto.grammar", None), ("kyoto-test.en", None), ("kyoto.grammar", "of another grammar\n"):
        (tmp_path / "kyoto-dev.ja").write_text("as it was")
        embedded.write_embedded(tmp_path)
        assert (tmp_path / "kyoto-dev.ja").read_text() == "as it was"
        (tmp_path / name).unlink() if content is None else (tmp_path / name).write_text(content)
        embedded.write_embedded(tmp_path)
        assert {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()} == written


def test_multi30k_is_learned_as_in_seq2seq(shared_data: Path, root: Path) -> None:
    """Moses cuts nearly as many words as spaCy, 7855 and 5893; an epoch is all pairs in batches of 128."""
    recipe = TranslationConfig.load(PRESET / "multi30k_de_en_words.yaml")
    data, batch = replace(recipe.data, archive=shared_data / "multi30k.tar.xz"), recipe.batch
    corpus = prepare_corpus(data, root)
    tokenizers = cached_tokenizers(corpus, recipe.tokenizer, quiet)
    assert [len(tokenizer) for tokenizer in tokenizers] == [7859, 5921]
    train, dev, test = (cached_tokens(corpus, split, tokenizers, quiet) for split in SPLITS)
    bounds = batch.tokens_per_batch, batch.max_tokens, 1, batch.length_multiple, batch.sentences_per_batch
    epoch = BucketSampler(train, *bounds).epoch(0)
    assert sorted(len(batch.src) for batch in epoch) == [29_000 % 128] + [128] * 226
    assert (epoch.n_dropped, len(epoch)) == (0, recipe.training.validate_every)
    assert epoch.padding < 0.03
    for side, file in zip([*dev, *test], [*corpus.dev, *corpus.test], strict=True):
        require_positions(side, file, recipe.model.max_length, "model.max_length")
