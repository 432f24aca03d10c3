"""translate.py on an untrained run: lines as they arrive, what is shown of them, options, the prompt."""

import gc
import json
import math
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, TextIO, cast

import pytest
import torch

import translate
from config.search import SamplingConfig, SearchConfig
from const.path import ROOT
from tests.samples import page_data
from tests.tiny import TEXT, Outcome, outcome, run, tagged_tokenizers, tokenizers, translating
from utils.command import option_of
from utils.config import TranslationConfig
from utils.file import locked
from utils.load import load_run
from utils.run import WEIGHTS, find_run, run_reading
from utils.search.inspection import Inspector
from utils.search.searcher import BeamSearch, Sampling
from utils.search.translator import Translator
from utils.terminal.catalog import _MESSAGE, Catalog
from utils.terminal.input import Ahead, Conversation, arriving_lines, count_lines, kept_history, lines_after, paired
from utils.terminal.option import SEARCH, Options, search_configs
from utils.terminal.output import Presenter
from utils.terminal.subtitles import Subtitles
from utils.text.protected import NAME_MARKS, NUMBER_MARKS
from utils.text.words import WordPair, Words

LINES = [TEXT.src[0], "", TEXT.src[77], "寺", "  "]
LINE, LONG = TEXT.src[0], "".join(TEXT.src[:8])

CPU = torch.device("cpu")
Command = Callable[..., Outcome]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = run(tmp_path_factory.mktemp("pickles"))
    config = TranslationConfig.load(folder / "config.yaml")
    replace(config, search=replace(config.search, max_length=16)).save(folder / "config.yaml")
    return folder


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs translate.py, which takes two lines at a time; the tiny run is the only one."""
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 2)
    monkeypatch.setattr(translate, "find_run", partial(find_run, root=folder.parent))
    monkeypatch.setattr(translate, "run_reading", partial(run_reading, root=folder.parent))

    return partial(outcome, "translate.py", translate.main, capsys)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[str]:
    """Translations of `LINES` by the run."""
    return [t.text for t in load_run(folder, CPU).translator().translate(LINES)]


@pytest.fixture
def expected_of_a_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Translations of `LINES` in a process of its own, where loops are ended (see conftest.py)."""
    monkeypatch.setattr("utils.text.loop.OFTEN", 2)
    return [t.text for t in load_run(folder, CPU).translator().translate(LINES)]


def as_file(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


def read_json(text: str) -> list[dict[str, Any]]:
    assert "\\u" not in text
    return [json.loads(line) for line in text.splitlines()]


def test_a_text_or_a_line_of_standard_input_is_a_line_of_output(command: Command, expected: list[str]) -> None:
    assert command(*LINES).out == as_file(expected)
    assert command("--input", "-", stdin=as_file(LINES).encode()).out == as_file(expected)
    assert "out.gz: it would not be compressed: leave out .gz" in command("寺", "--output", "out.gz").complaint
    assert command(stdin=as_file(LINES)[:-1].encode()).out == as_file(expected)
    windows, of_windows = ("\ufeff" + as_file(lines).replace("\n", "\r\n") for lines in (LINES, expected))
    assert command(stdin=windows.encode()).out == of_windows
    plain, marked = (command("--format", "jsonl", stdin=text.encode()).out for text in (as_file(LINES), windows))
    assert plain == marked
    assert command(f"{LINES[0]}\n{LINES[2]}", "寺").out == command(f"{LINES[0]} {LINES[2]}", "寺").out
    assert command(stdin="寺\u2028がある\n橋\n".encode()).out.count("\n") == 2
    assert gc.isenabled()  # it paused for imports


def test_what_a_pipe_gave_before_a_wrong_line_is_kept_and_a_file_is_checked_first(
    command: Command, expected: list[str], tmp_path: Path
) -> None:
    wrong, out = tmp_path / "wrong", tmp_path / "out"
    wrong.write_bytes(as_file(LINES[:3]).encode() + b"\xff\n")
    assert "line 4: byte 0xff is not UTF-8; save" in command("--input", wrong, "--output", out).complaint
    assert not out.exists()
    kept = command("--output", out, stdin=wrong.read_bytes())
    assert f"save the file as UTF-8; what comes before it is in {out}" in kept.complaint
    assert out.read_text(encoding="utf-8") == command(stdin=wrong.read_bytes()).out == as_file(expected[:3])


def test_a_line_is_handed_on_while_the_next_one_is_waited_for(folder: Path, expected_of_a_program: list[str]) -> None:
    command = [sys.executable, "translate.py", "--run", str(folder), "--device", "cpu", "--precision", "fp32"]
    program = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
    with program, cast(TextIO, program.stdin) as ear, cast(TextIO, program.stdout) as mouth:
        for line, translation in zip(LINES, expected_of_a_program, strict=True):
            print(line, file=ear, flush=True)
            assert mouth.readline() == f"{translation}\n"
    assert program.returncode == 0


@pytest.mark.parametrize("words", [(), ("--sample", "--seed", "3"), ("--format", "jsonl"), ("--n-best", "2")])
def test_a_file_that_was_not_finished_is_gone_on_with(
    words: tuple[str, ...], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out, part = (tmp_path / name for name in ("in.ja", "out.en", "out.en.part"))
    source.write_text("\ufeff" + as_file([*TEXT.src[:6], LONG]), encoding="utf-8", newline="\r\n")
    translate_all, numbers = Presenter.translations, list[int]()

    def stopped(self: Presenter, first: int, *rest: Any) -> Iterator[str]:
        numbers.append(first)
        if len(numbers) in (3, 5):
            raise KeyboardInterrupt
        return translate_all(self, first, *rest)

    asked = "--input", source, "--output", out, *words
    expected = command("--input", source, *words).out
    monkeypatch.setattr(Presenter, "translations", stopped)
    found = command(*asked)
    assert (found.status, found.out, out.exists()) == (130, "", False)
    assert f"{part} has the first 4 lines: the same command goes on from there" in found.err
    begun = part.read_bytes()
    assert expected.encode().startswith(begun)
    part.write_bytes(begun + b"half a line" * 99)  # as a process that is killed leaves it
    for first in (5, 7):
        assert f"going on from line {first}: the lines before it are in {part}\n" in command(*asked).err
    assert numbers == [1, 3, 5, 5, 7, 7]
    assert out.read_bytes().decode() == expected
    assert {*tmp_path.iterdir()} == {source, out}


def test_what_another_command_has_not_finished_is_begun_anew(
    command: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, source, out, part = (tmp_path / name for name in ("run", "in.ja", "out.en", "out.en.part"))
    shutil.copytree(folder, run)
    terms = tmp_path / "terms.tsv"
    translate_all = Presenter.translations

    def stopped(self: Presenter, first: int, *rest: Any) -> Iterator[str]:
        if first > 2:
            raise KeyboardInterrupt
        return translate_all(self, first, *rest)

    def edit(file: Path, old: str, new: str) -> None:
        file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")

    asked = "--run", run, "--input", source, "--output", out, "--glossary", terms
    for option, more, change in (
        ("--glossary", (), partial(edit, terms, "Uji", "Nara")),
        ("--run", (), partial(edit, run / "config.yaml", "beam_size: 2", "beam_size: 3")),
        ("--input", (), partial(edit, source, TEXT.src[1], LINE)),
        ("--n-best, --beam", ("--beam", "4", "--n-best", "2"), partial(edit, source, LINE, LINE)),
    ):
        source.write_text(as_file(TEXT.src[:4]), encoding="utf-8")
        terms.write_text("宇治\tUji\n", encoding="utf-8")
        with monkeypatch.context() as patch:
            patch.setattr(Presenter, "translations", stopped)
            assert command(*asked).status == 130
        change()
        assert f"{part} was written with another {option}: beginning anew\n" in command(*asked, *more).err
        without_output = [word for word in (*asked, *more) if word not in ("--output", out)]
        assert out.read_bytes().decode() == command(*without_output).out
    with locked(part):
        assert f"another process writes {part}: wait for its end" in command(*asked).complaint
    part.unlink()
    assert "outside the vocabulary" in command(*asked[:-2], "--prefix", "龍").complaint
    assert not part.exists()


def test_of_very_many_lines_few_are_held() -> None:
    lines, n_done = BytesIO(b"a\n" * 1_000_000), 0
    for chunk in arriving_lines(lines, "a", 1000, 1000):
        assert 0 < len(chunk) <= 1000
        assert lines.tell() // 2 - n_done < 200_000
        n_done += len(chunk)
    assert n_done == 1_000_000


def test_the_first_lines_come_soon_and_then_as_many_at_once_as_before() -> None:
    sizes = [len(chunk) for chunk in arriving_lines(BytesIO(b"a\n" * 60), "a", 2, 16)]
    assert sizes == [2, 2, 4, 8, 16, 16, 12]
    slow = iter([b"a\n", b"b\nc\n", b""])
    stream = BytesIO()
    stream.read1 = lambda _=-1: next(slow)  # type: ignore[method-assign]
    assert [*arriving_lines(stream, "a", 2, 16)] == [["a"], ["b", "c"]]


@pytest.mark.parametrize(("n", "rest"), [(0, ["ab", "c"]), (1, ["b", "c"]), (2, ["c"]), (3, []), (4, [])])
def test_the_lines_after_those_that_are_done_are_left(n: int, rest: list[str]) -> None:
    assert ["".join(chunk) for chunk in lines_after(n, [["a", "b"], ["c"]])] == rest


@pytest.mark.parametrize("n_bytes", [1, 2**18])
@pytest.mark.parametrize("content", ["", "a\nb\n", "a\nb", "\n\n", "a\u2028b\nc\x85\n"])
def test_lines_are_those_of_a_file(content: str, n_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.terminal.input._MAX_BYTES", n_bytes)  # a line may come in many pieces
    lines = [line.decode().removesuffix("\n") for line in BytesIO(content.encode())]
    assert [line for chunk in arriving_lines(BytesIO(content.encode()), "a", 2, 3) for line in chunk] == lines
    (tmp_path / "a").write_bytes(content.encode())
    assert count_lines(tmp_path / "a") == len(lines)
    os.mkfifo(tmp_path / "pipe")
    assert count_lines(tmp_path / "pipe") is None


@pytest.mark.parametrize(
    ("others", "message"),
    [("", "B ends after 0 lines, A"), ("xy", "B ends after 2 lines, A"), ("xyzw", "A ends after 3 lines, B")],
)
def test_a_side_that_ends_first_is_named_after_the_pairs_before(others: str, message: str) -> None:
    chunks, found = [["a", "b"], ["c"]], list[list[tuple[str, str]]]()
    assert list(paired(chunks, iter("xyz"), ("A", "B"))) == [[("a", "x"), ("b", "y")], [("c", "z")]]
    with pytest.raises(ValueError, match=message):
        found.extend(paired(chunks, iter(others), ("A", "B")))
    assert [pair for pairs in found for pair in pairs] == list(zip("abc", others, strict=False))


def test_a_stream_is_looked_at_up_to_its_first_letters_and_read_whole() -> None:
    class Slow(BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return super().read1(4 if size else size)

    for text, beginning in (("---\n1\n\n\n寺\n橋\n", "---\n1\n\n\n寺\n"), ("1\n", "1\n"), ("", "")):
        ahead = Ahead(Slow(text.encode()))
        assert ahead.beginning() == ahead.beginning() == beginning
        assert b"".join(iter(ahead.read1, b"")).decode() == text


def test_what_a_reader_must_know_is_said_with_its_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    found = command(stdin=as_file(["寺", "鬱", LONG, "寺鬱😀"]).encode())
    unknown, partly = found.err.splitlines()
    assert unknown == "line 2: no part of it is in the vocabulary; left unchanged"
    assert partly == "line 4: not in the vocabulary, so the model reads <unk>: 鬱"
    assert found.out.splitlines()[1] == "鬱"
    assert found.out.endswith("😀\n")
    asked = "寺は https://a.org/b?c=1。川は me@a.co.jp, 見て。"
    assert "line 1: the translation does not have https://a.org/b?c=1 me@a.co.jp\n" in command(asked).err
    asked = "https://a.org/会議.pdf?id=1を見て、https://b.org/2年.txtへ、https://c.org/から寺.へ行く"
    lost = "https://a.org/会議.pdf?id=1 https://b.org/2年.txt https://c.org/"
    assert f"line 1: the translation does not have {lost}\n" in command(asked).err
    with monkeypatch.context() as patch:
        answers = iter([False, True, False])  # of the two lines, and of what was searched again
        patch.setattr("utils.text.loop.is_loop", lambda _text, _source: next(answers))
        *_, loop = command(stdin=as_file(["橋", "寺"]).encode()).err.splitlines()
    assert loop == "line 2: the model repeated itself again and again: searched again"
    *said, last = command(stdin=as_file(["鬱"] * 12).encode()).err.splitlines()
    assert len(said) == 10
    assert last.startswith("2 more lines: left unch")


def test_a_run_of_tokenized_text_takes_plain_text_where_it_can_and_else_says_so_once(
    command: Command, folder: Path, tmp_path: Path
) -> None:
    tokenized, remark = tmp_path / "tokenized", "this run learned from text where spaces separate all words and marks: "
    shutil.copytree(folder, tokenized)
    config = TranslationConfig.load(folder / "config.yaml")
    replace(config, data=replace(config.data, corpus="multi30k_tok")).save(tokenized / "config.yaml")
    assert command(LINE).err == ""
    assert command("--run", tokenized, stdin=as_file(TEXT.src[:12]).encode()).err.count(remark) == 1
    assert remark not in command("寺 。", "--run", tokenized).err
    german, english = Words("de", {}, True, False, False), Words("en", {}, True, False, False)
    WordPair(german, english).save(tokenized)
    plain, words, unread = (
        command(*given, "--run", tokenized)
        for given in (
            ["Tera, tera."],
            ["tera , tera .", "--pre-tokenized"],
            ["Tera, tera.", "--pre-tokenized"],
        )
    )
    assert plain.err == words.err
    assert plain.out == english.join(words.out) + "\n" != words.out
    assert unread.out != words.out


def test_a_text_has_the_tag_that_it_is_given(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = tagged_tokenizers()
    monkeypatch.setattr("tests.tiny.tokenizers", lambda: pair)
    folder, other = run(tmp_path / "law"), run(tmp_path / "bt")
    (other / "tokenizer_tag.txt").write_text("<2en> <bt>")
    as_json = "--format", "jsonl", "--alignment", "--max-length", "9", "--run", folder

    def read(*options: str | Path) -> list[str]:
        (found,) = read_json(command(LINE, *as_json, *options).out)
        return found["source_tokens"]

    text = read("--tag", "")[1:]
    assert read() == read("--tag", "law") == ["<2en>", "<law>", *text]
    assert read("--tag", "bt") == read("--tag", "bt", "--run", other) == ["<2en>", "<bt>", *text]
    assert not {"<bt>", "<law>"} & {*text}
    unknown = "error: tag=it, but the vocabulary knows bt, law: give one that it knows or none"
    assert unknown in command(LINE, *as_json, "--tag", "it").complaint
    both = command(LINE, *as_json, "--run", other).complaint
    assert f"sources of {folder} begin with <2en> <law>, those of {other} with <2en> <bt>: give" in both
    # nothing of it is in the vocabulary but the tags, which are not of it
    assert command("鬱", "--run", folder).out == "鬱\n"


def test_what_the_model_is_unsure_of_is_remarked_on(command: Command, folder: Path) -> None:
    run = load_run(folder, CPU)
    inspector = Inspector(run.translator(precision="fp32"), [run.model])
    found = inspector.translator.translate([LINE, LONG, ""])
    assert len(found[1].pieces) > 1
    assert found[2].perplexity == 1
    for text, one, log_probs in zip((LINE, LONG), found[:2], inspector.log_probs(found)[:2], strict=True):
        assert one.perplexity == pytest.approx(math.exp(-sum(log_probs) / len(log_probs)), rel=1e-4)
        for bound, remark in (
            (one.perplexity * 0.99, "line 1: the model is unsure"),
            (one.perplexity * 1.01, ""),
            (0, ""),
        ):
            said = command(text, "--max-perplexity", bound, "--precision", "fp32").err
            assert said[: len(remark) or None] == remark


def test_a_run_chosen_for_its_language_is_named_on_a_terminal_and_another_language_is_remarked_on(
    command: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = folder.parent / "back-20990101-000000"
    shutil.copytree(folder, back)
    config = TranslationConfig.load(folder / "config.yaml")
    try:
        replace(config, data=replace(config.data, src_lang="en", tgt_lang="ja")).save(back / "config.yaml")
        os.utime(back / WEIGHTS, (2**32, 2**32))
        remark = "the text is not in ja: 0% of its letters are kana and kanji; --run names a run that reads it\n"
        assert command("--run", folder, "temple").err.startswith(remark)
        assert (
            "the text" not in command("--run", folder, "Visual Studio Code Remote Development を使う (Microsoft)").err
        )
        late = command("--run", folder, stdin=b"---\n\n2024-03-05\ntemple\ngarden\n").err
        assert late.count(remark) == 1
        text = tmp_path / "text"
        text.write_text("The temple.\n")
        for found in (command("--input", text), command(stdin=b"The temple.\n"), command("The temple.")):
            assert "line 1: no part" in found.err  # the vocabulary is still that of the source
            assert "the text" not in found.err
        late = "-" + "\n" * 9000 + "寺\n"
        text.write_text(late, encoding="utf-8")
        for found in (command("--input", text), command(stdin=late.encode())):
            assert (found.out.startswith("-\n"), found.out.count("\n"), found.err) == (True, 9001, "")
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        for asked, run, direction in (("temple", back, "en → ja"), ("寺", folder, "ja → en")):
            assert command(asked).err.startswith(f"{run.name}: {direction}\n")
        assert command("寺", "--run", back).err.startswith("the text is not in en: 100% of its letters are ")
    finally:
        shutil.rmtree(back)


def test_n_best_translations_are_a_list_as_moses_writes_it(command: Command, expected: list[str]) -> None:
    found = command("--n-best", "2", stdin=as_file(LINES).encode())
    rows = [line.split("\t") for line in found.out.splitlines()]
    assert [number for number, *_ in rows] == ["1", "1", "2", "3", "3", "4", "4", "5"]
    assert [rows[i][2] for i in (0, 2, 3, 5, 7)] == expected
    assert all(float(rows[i][1]) >= float(rows[i + 1][1]) for i in (0, 3, 5))


def test_json_has_what_is_cheap_and_what_is_asked_for(command: Command, expected: list[str]) -> None:
    cheap = {
        "source",
        "translation",
        "score",
        "tokens",
        "unknown",
        "unknown_tokens",
        "far",
        "loop",
        "wordless",
        "dropped",
    }
    plain = read_json(command("--format", "jsonl", stdin=as_file(LINES).encode()).out)
    assert [(row["source"], row["translation"], set(row)) for row in plain] == [
        (line, text, cheap) for line, text in zip(LINES, expected, strict=True)
    ]
    costly = "--format", "jsonl", "--n-best", "2", "--log-probs", "--alignment"
    rich = read_json(command(*costly, stdin=as_file(LINES).encode()).out)
    for row, text in zip(rich, expected, strict=True):
        assert set(row) == cheap | {"n_best", "log_probs", "source_tokens", "alignment"}
        assert row["n_best"][0] == {key: row[key] for key in ("translation", "score", "tokens")}
        if text.strip():
            length = len(row["tokens"]) + 1
            assert (row["translation"], len(row["n_best"])) == (text, 2)
            assert sum(row["log_probs"]) / SearchConfig().penalty(length) == pytest.approx(row["score"], abs=0.01)
            links = [tuple(map(int, link.split("-"))) for link in row["alignment"].split()]
            assert [target for _, target in links] == list(range(length - 1))
            assert max(source for source, _ in links) < len(row["source_tokens"])
        else:
            assert (row["tokens"], row["log_probs"], row["alignment"]) == ([], [], "")
    (row,) = read_json(command(TEXT.src[0] + TEXT.src[1], "--format", "jsonl").out)
    assert [one["source"] for one in row["sentences"]] == TEXT.src[:2]
    assert " ".join(one["candidates"][0]["translation"] for one in row["sentences"]) == row["translation"]


def test_terms_of_a_glossary_appear_and_what_does_not_is_told(command: Command, tmp_path: Path) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("京都\tUji\n寺\tNara\n\n橋\t" + "temple " * 9, encoding="utf-8")
    found = command(
        *LINES[:3], "京都、京都。寺", "橋", "川", "--glossary", terms, "--format", "jsonl", "--max-length", "20"
    )
    rows = read_json(found.out)
    assert rows[0]["terms"] == [{"term": "Uji", "appears": True}, {"term": "Nara", "appears": True}]
    assert (rows[3]["translation"].count("Uji"), rows[3]["translation"].count("Nara")) == (2, 1)
    assert [len(row["terms"]) for row in rows] == [2, 0, 0, 3, 1, 0]
    long = ("temple " * 9).strip()
    assert f"line 5: the translation does not have the terms {long}\n" in found.err
    assert found.err.endswith(f"glossary: 5 of 6 terms appear in 3 lines; missing: {long}\n")
    assert command("川", "--glossary", terms).err.endswith("glossary: 0 of 0 terms appear in 0 lines\n")


def test_a_term_that_looks_like_the_end_of_a_sentence_does_not_end_it(command: Command, tmp_path: Path) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("橋。寺\tNara\n", encoding="utf-8")
    (row,) = read_json(command("橋。寺と川。京都。", "--glossary", terms, "--format", "jsonl").out)
    assert row["terms"] == [{"term": "Nara", "appears": True}]
    assert [sentence["source"] for sentence in row["sentences"]] == ["橋。寺と川。", "京都。"]


def test_given_translations_are_scored_line_by_line(command: Command, tmp_path: Path) -> None:
    src, given = as_file([*TEXT.src[:3], ""]).encode(), tmp_path / "tgt"
    given.write_text(as_file([*TEXT.tgt[:3], ""]), encoding="utf-8")
    found = command("--score", given, stdin=src)
    rows = [[float(cell) for cell in line.split("\t")] for line in found.out.splitlines()]
    assert (len(rows), rows[3]) == (4, [0, 0, 1])
    n_tokens = int(sum(n for _, n, _ in rows))
    together = math.exp(-sum(log_prob for log_prob, *_ in rows) / n_tokens)
    assert found.err == f"4 lines, {n_tokens} tokens with </s>, perplexity {together:.2f}\n"


def test_words_and_their_links_are_lines(command: Command, expected: list[str]) -> None:
    found = command("--format", "pharaoh", stdin=as_file([*LINES, LONG]).encode())
    rows = [line.split("\t") for line in found.out.split("\n")[:-1]]
    assert [row[1] for row in rows[:5]] == [" ".join(text.split()) for text in expected]
    assert rows[1] == rows[4] == ["", "", ""]
    assert "".join(rows[5][0].split()) == LONG
    (record,) = read_json(command(LINE, "--format", "jsonl", "--alignment").out)
    assert rows[0][0].split() == [token.replace("▁", "") for token in record["source_tokens"] if token != "▁"]
    source, target, links = (field.split() for field in rows[0])
    pairs = [tuple(map(int, link.split("-"))) for link in links]
    assert len(source) > max(s for s, _ in pairs)
    assert {t for _, t in pairs} == {*range(len(target))}


def test_only_what_is_translated_is_a_sentence(command: Command, tmp_path: Path) -> None:
    """And not what stands around it."""
    row = f"・{LINE}\t---"
    (record,) = read_json(command(row, "--format", "jsonl").out)
    assert (record["translation"], "sentences" in record) == (f"・{command(LINE).out[:-1]}\t---", False)
    (record,) = read_json(command(f"{row}\t{LINE}", "--format", "jsonl").out)
    assert [sentence["source"] for sentence in record["sentences"]] == [LINE, LINE]
    assert command(row, "--attention", tmp_path / "a.html").status == 0
    assert "'===' has no word that is in the vocabulary" in command("===", "--attention", tmp_path / "a.html").complaint


def test_the_translation_whose_attention_is_drawn_is_the_one_that_is_asked_for(
    command: Command, tmp_path: Path
) -> None:
    def drawn(*words: str) -> str:
        (row,) = read_json(command(LINE, "--attention", tmp_path / "a.html", "--format", "jsonl", *words).out)
        assert page_data(tmp_path / "a.html")["target"]["tokens"] == row["tokens"]
        return row["translation"]

    assert len({drawn(), drawn("--prefix", "Uji"), drawn("--sample", "--seed", "3")}) == 3
    command(LINE, "--score", TEXT.tgt[0], "--attention", tmp_path / "a.html")
    data = page_data(tmp_path / "a.html")
    assert "".join(data["target"]["tokens"]).replace("▁", " ").strip() == TEXT.tgt[0]


def test_the_search_is_that_of_the_run_until_told_otherwise(command: Command) -> None:
    plain, same, *others = (
        command(*TEXT.src[:4], "--n-best", "2", *options.split()).out
        for options in ("", "--precision fp32 --beam 2", "--precision bf16", "--beam 6 --minimum-bayes-risk")
    )
    assert plain == same
    assert len({plain, *others}) == 3


def test_drawn_translations_are_those_of_their_seed_and_number_however_many_are_read_at_once(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(*words: str) -> str:
        return command("--sample", *words, stdin=as_file([LINE, LINE, LINE, LINE * 2]).encode()).out

    together = drawn()
    assert together == drawn("--seed", "1") != drawn("--seed", "2")
    *lines, last = together.splitlines()
    assert len(set(lines)) == 3
    (first,) = command("--sample", LINE, LINE, LINE, LINE).out.splitlines()[3:]
    assert last != f"{first} {first}"  # each sentence has draws of its own
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 1000)
    assert drawn() == together


OWN = SearchConfig(beam_size=2, length_penalty=0.9, max_ratio=3.0)
EVERY = (
    "--beam 5 --length-penalty -1 --normalization length --min-length 2 --max-length 9 --min-ratio 0.1 "
    "--max-ratio 4 --no-repeat-ngram 3 --by-sentence false --max-perplexity 2.5"
)


@pytest.mark.parametrize(
    ("words", "search", "sampling"),
    [
        ("", OWN, None),
        (EVERY, SearchConfig(5, -1.0, "length", 2, 0.1, 9, 4.0, 3, False, 2.5), None),
        ("--by-sentence true", OWN, None),
        ("--n-best 5", replace(OWN, beam_size=5), None),
        ("--sample --temperature 0.5 --top-k 10 --top-p 0.9 --seed 4", OWN, SamplingConfig(1, 0.5, 10, 0.9, 4)),
        ("--sample --n-best 6 --samples 9", OWN, SamplingConfig(9)),
        ("--sample --minimum-bayes-risk", OWN, SamplingConfig(32)),
        ("--sample --minimum-bayes-risk --n-best 50", OWN, SamplingConfig(50)),
    ],
)
def test_every_option_reaches_its_setting(words: str, search: SearchConfig, sampling: SamplingConfig | None) -> None:
    options = Options.read(translate.build_parser().parse_args(words.split()))
    assert search_configs(OWN, options) == (search, sampling)
    assert {*map(option_of, SEARCH)} == set(EVERY.split()[::2])


# the prompt


@pytest.fixture
def talk() -> Conversation:
    search = SearchConfig(beam_size=2, max_ratio=1.0, max_length=12)
    return Conversation(Translator(BeamSearch(translating(), CPU), tokenizers(), "en", search, 14, 48))


def test_commands_change_what_is_answered(talk: Conversation) -> None:
    assert talk.answer(":prefix There is") == ["n 1, beam 2, length_penalty 0.6, prefix 'There is'"]
    assert talk.answer("寺")[0].startswith("There is")
    talk.answer(":prefix")
    assert talk.answer(":n 3") == ["n 3, beam 3, length_penalty 0.6"]
    (found,) = talk.translator.translate(["寺"], n_best=3)
    assert [line.split(maxsplit=2) for line in talk.answer("寺")] == [
        [str(i), f"{candidate.score:.4f}", candidate.text.strip()] for i, candidate in enumerate(found.candidates, 1)
    ]
    assert talk.answer(":beam 2") == ["n 2, beam 2, length_penalty 0.6"]  # a narrower beam shows fewer
    assert talk.answer(":n 1") == ["n 1, beam 2, length_penalty 0.6"]
    assert talk.answer("鬱") == ["鬱", "(no part of it is in the vocabulary; left unchanged)"]
    talk.translator.searcher = Sampling(translating(), CPU, SamplingConfig(2))
    talk.answer(":n 5")
    assert talk.translator.sampling == SamplingConfig(5)
    assert talk.answer(":help")[0].startswith("  :n N ")
    assert talk.answer(": quit ") == []
    assert talk.is_over


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (":n 0", ": give 1 to 1,000"),
        (":n 2000", ": give 1 to 1,000"),
        (":beam", " has no value: see :help"),
        (":beam wide", ": give a whole number"),
        (":length_penalty 99.0", ": give -10 to 10"),
    ],
)
def test_a_command_that_cannot_be_obeyed_changes_nothing(talk: Conversation, command: str, reason: str) -> None:
    before = talk.settings()
    with pytest.raises(ValueError, match=re.escape(command + reason)):
        talk.answer(command)
    with pytest.raises(ValueError, match="unknown command :bem: see :help"):
        talk.answer(":bem 3")
    assert talk.settings() == before


@pytest.mark.parametrize("state", ["a file", ""], ids=["no folder", "no home"])
def test_what_was_typed_need_not_be_kept(state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / state) if state else "")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home directory")))
    with kept_history():
        pass


@pytest.mark.parametrize("locale", ["C.UTF-8", "C", "xx_XX.UTF-8"])
def test_the_prompt_remembers_answers_and_obeys(
    locale: str, folder: Path, expected_of_a_program: list[str], tmp_path: Path
) -> None:
    state = tmp_path / ".local" / "state" / "miyako" / "history"
    state.parent.mkdir(parents=True)
    state.write_text(f"{LINES[0]}\n", encoding="utf-8")
    ours, theirs = pty.openpty()
    environment = os.environ | {"XDG_STATE_HOME": "", "HOME": str(tmp_path), "TERM": "dumb", "LC_ALL": locale}
    command = [sys.executable, "translate.py", "--run", str(folder), "--device", "cpu"]
    program = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    shown = ""

    def answer_to(typed: str) -> str:
        nonlocal shown
        os.write(ours, typed.encode())
        while "\n> " not in shown:
            shown += os.read(ours, 4096).decode("utf-8", "replace").replace("\r", "")
        before, shown = shown.split("\n> ", 1)
        return before

    assert "tiny-" in answer_to("")
    assert expected_of_a_program[0] in answer_to("\x10\n")  # the previous line, from an earlier session
    assert expected_of_a_program[2] in answer_to(f"{LINES[2]}\n")
    assert ":beam 0: give 1 to 1,000" in answer_to(":beam 0\n")
    os.write(ours, b"\x04")
    assert program.wait(60) == 0
    os.close(ours)
    assert state.read_text(encoding="utf-8").splitlines()[-2:] == [LINES[2], ":beam 0"]


# Subtitles.

FILM = """1
00:00:01,000 --> 00:00:04,000
A B
C D

2
00:00:04,500 --> 00:00:07,000 X1:1 X2:2 Y1:3 Y2:4
{\\an8}<i>E</i>

3
00:00:08,000 --> 00:00:11,000
- F <b>G</b>?
- H,
I

4
00:00:12,000 --> 00:00:13,000
<i>♪</i>


00:00:14,000 --> 00:00:15,000
京都は
古い。
6
00:00:16,000 --> 00:00:17,000

7
00:00:18,000 --> 00:00:19,000
-- J"""


@pytest.mark.parametrize(("mark", "end"), [("", "\n"), ("\ufeff", "\r\n")])
def test_subtitles_keep_their_shape(mark: str, end: str, tmp_path: Path) -> None:
    (tmp_path / "film.srt").write_bytes((mark + FILM).replace("\n", end).encode())
    film = Subtitles(tmp_path / "film.srt")
    texts = [text.text for text in film.texts]
    assert texts == ["A B C D", "E", "F G?", "H, I", "京都は古い。", "-- J"]
    assert film.numbers == [3, 8, 12, 13, 22, 29]
    long = "It is more than what fits on a line, and not more than fits on two."
    links = [[], [], [((2, 3), (0, 1)), ((0, 1), (2, 3))], [], [], []]
    found = film.filled([*zip([long, "Y", "Z F!", "Here.", "Kyoto is old.", "J"], links, strict=True)])
    expected = FILM.replace("A B\nC D", "It is more than what fits on a line,\nand not more than fits on two.")
    others = {
        "E<": "Y<",
        "F <b>G</b>?": "<b>Z</b> F!",
        "H,\nI": "Here.",
        "京都は\n古い。": "Kyoto is old.",
        "-- J": "J",
    }
    for old, new in others.items():
        expected = expected.replace(old, new)
    assert found == (mark + expected).replace("\n", end)


@pytest.mark.parametrize(
    ("text", "translation", "lines"),
    [
        ("a\nb\nc", "A short one.", ["A short one."]),
        ("a", "one " * 30, [("one " * 30).strip()]),  # a line stays a line
        ("a\nb", "京都は日本の古い都で、寺と社がとても多い。", ["京都は日本の古い都で、", "寺と社がとても多い。"]),
        (
            "<i>a\nb</i>",
            "古い都であり古い都で古い「京都の寺」がとても多い。",
            ["<i>古い都であり古い都で古い", "「京都の寺」がとても多い。</i>"],
        ),
        ("a\nb", "http://example.com/" + "a" * 60, ["http://example.com/" + "a" * 60]),
        ("<c.yellow>a</c>", "A.", ["<c.yellow>A.</c>"]),
        ("a<br>", "A.", ["A.<br>"]),
        ("- <i>a</i> b", "A B.", ["- A B."]),
        ("{\\an8}- <b>彼</b>は", "He.", ["{\\an8}- He."]),
        ("♪ 歌う ♪", "Sing.", ["♪ Sing. ♪"]),
        ("- <i># 歌う</i>", "Sing.", ["- <i># Sing.</i>"]),
        ("#歌う #1#", "Sing #1.", ["#Sing #1.#"]),
        ("*歌う*", "Sing.", ["*Sing.*"]),
        ("#1 in C#", "C# 1", ["C# 1"]),
        ("[音楽]", "Music", ["[Music]"]),
    ],
)
def test_a_subtitle_has_no_more_lines_than_before(
    text: str, translation: str, lines: list[str], tmp_path: Path
) -> None:
    head = "1\n00:00:01,000 --> 00:00:04,000\n"
    (tmp_path / "film.srt").write_text(head + text)
    assert Subtitles(tmp_path / "film.srt").filled([(translation, [])]) == head + "\n".join(lines)


# «before|after»
MESSAGES = r"""# guide
msgid ""
msgstr ""
"Language: en\n"
"Content-Type: text/plain; charset=«ASCII|UTF-8»\n"

#, c-format
msgctxt "a"
msgid "A\n\n <b>%s</b>\tC"
msgstr ""
"\"there\""

#: b.c
#, c-format
«|#, fuzzy
»msgid "%d %s, "
"W \"100%%\"\n"
msgstr «""|"\"%d\" %% \\ %s W\n"»

«|#, fuzzy
»msgid "one {n}"
msgid_plural "many {n}"
msgstr[0] «""|"{n} 1"»
msgstr[1] «""|"{n} 2"»
«|#, fuzzy
»msgid "%d"
msgid_plural "only %d"
msgstr[0] «""|"%d 3"»
«|#, fuzzy
»msgid "a %s\n--"
msgstr ""«|
"a %s\n"
"--"»

#~ msgid "gone"
#~ msgstr "no"
"""


def test_comments_without_a_message_are_passed_at_once() -> None:
    """Not tried again from each of their lines, which takes the square of their number."""
    for comment in ('#~ msgid "old"\n', '#| msgid "older"\n'):
        end = 9 * len(comment)
        assert [found.span() for found in _MESSAGE.finditer(comment * 9)] == [(0, end), (end, end)]


def marked(text: str) -> str:
    """The text with marks of placeholders in place of X, Y, Z, and 7, 8."""
    return text.translate(str.maketrans("XYZ78", NAME_MARKS[:3] + NUMBER_MARKS[:2]))


@pytest.mark.parametrize(("mark", "end"), [("", "\n"), ("\ufeff", "\r\n")])
def test_messages_without_a_translation_get_one_that_is_marked(mark: str, end: str, tmp_path: Path) -> None:
    changes = re.compile("«([^|]*)\\|([^»]*)»")
    before, after = ((mark + changes.sub(rf"\{side}", MESSAGES)).replace("\n", end).encode() for side in (1, 2))
    (tmp_path / "a.po").write_bytes(before)
    catalog = Catalog(tmp_path / "a.po")
    texts = '7 X, W "100%"', "one X", "many X", "only 7", "a X"
    assert [text.text for text in catalog.texts] == [*map(marked, texts)]
    assert catalog.numbers == [15, 19, 19, 23, 26]
    translations = '"7" % \\ X W', "X 1", "X 2", "7 3", "a X"
    assert catalog.filled([(marked(text), []) for text in translations]).encode() == after


@pytest.mark.parametrize(
    ("message", "translation", "lost"),
    [
        ("%s to %s", "Y from X", ["%s"]),  # whose arguments would change places
        ("%1$s to %2$s", "Y from X", []),
        ("%(a)s to {b}", "Y from X", []),
        ("{} to {}", "Y from X", ["{}"]),
        ("%s to %d", "X X 7", ["%s"]),
        ("%-5.2f to $HOME", "Y", ["%-5.2f"]),
        ("a" + " %s" * 65, "a" + " X" * 65, ["%s"]),  # more than there are marks for
        ("<b>%s</b> it", "X", ["b"]),
        ("{price:,.2f} for {user[name]}", "X for Y", []),
        ("{price:,.2f} for {user[name]}", "X", ["{user[name]}"]),
        ("{{ n }} of {city-name}", "Y of X", []),
        ("%'d yen", "7 yen", []),
        ("{n, plural, one {# file} other {# files}}", "X Y Z", ["{n, plural ...}"]),
        ("{0,choice,0#none|1#some} of", "X", ["{0,choice ...}"]),
        ("%1 of %2", "Y of X", []),  # of Qt or KDE
        ("%{n} of %<name>s", "Y of X", []),
        ("100%<b>off</b>", "100%off", ["b"]),  # and no placeholder of Ruby
        ("%<PRIu64> of %5s", "7 X", []),
        ("%<PRIu64> of %<PRId64>", "8 of 7", ["%<PRId64>", "%<PRIu64>"]),
        ("%lld to %lld", "8 to 7", ["%lld"]),
        ("%'*9s yen", "X yen", []),
        ("@count of !a-b, :attribute", "7 of Y, X", []),  # of Drupal, of Laravel
        ("at 10:30: @ :D a@b", "X", []),
    ],
)
def test_a_message_whose_translation_lacks_something_stays_as_it_is(
    message: str, translation: str, lost: list[str], tmp_path: Path
) -> None:
    (tmp_path / "a.po").write_text(content := f'msgid "{message}"\nmsgstr ""\n')
    catalog = Catalog(tmp_path / "a.po")
    assert (catalog.filled([(marked(translation), [])]) == content) == bool(lost)
    assert sorted(catalog.texts[0].lost) == lost


@pytest.mark.parametrize(
    ("flags", "message", "text"),
    [
        ("qt-format", "%1 %n of %L2", "X 7 of 8"),
        ("fuzzy, kde-format", "%1, %2% a", "X, Y% a"),
        ("c-format", "%1s of :it", "X of :it"),
        ("boost-format", "%1% %|2| a", "X Y a"),
        ("no-c-format", "%1s of %d日", "X of 7日"),
        ("fuzzy", "@count件の%nameと:name", "7件のXとY"),
    ],
)
def test_the_flag_of_a_message_says_what_a_placeholder_is(flags: str, message: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "a.po").write_text(f'#, {flags}\n#| msgid "%"\nmsgid "{message}"\nmsgstr ""\n')
    catalog = Catalog(tmp_path / "a.po")
    assert [text.text for text in catalog.texts] == [marked(text)]
    assert f'msgstr "{message}"' in catalog.filled([(marked(text), [])])


def test_tags_between_sentences_part_texts(tmp_path: Path) -> None:
    (tmp_path / "a.po").write_text('msgid "Save<BR/>a %s <li>A <B>C</b></li><LI>D</LI>"\nmsgstr ""\n')
    (tmp_path / "a.srt").write_text("1\n00:00:01,000 --> 00:00:04,000\n- A.<br>\n<i>B</i><p>C\n")
    for file in Catalog(tmp_path / "a.po"), Subtitles(tmp_path / "a.srt"):
        texts = [text.text for text in file.texts]
        assert texts == (["Save", marked("a X"), "A C", "D"] if isinstance(file, Catalog) else ["A.", "B", "C"])
        assert len(file.numbers) == len(texts)
        filled = file.filled([(text.lower(), [((2, 3), (2, 3))]) for text in texts])
        assert (
            '"save<BR/>a %s <li>a <B>c</b></li><LI>d</LI>"' if "msgid" in filled else "- a.<br> <i>b</i><p>c"
        ) in filled


@pytest.mark.parametrize("charset", ["ASCII", "CHARSET", "EUC-JP", "utf8", "UTF-8", "utf-8"])
def test_the_head_of_messages_says_what_the_file_is_written_in(charset: str, tmp_path: Path) -> None:
    head = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset={}\\n"\n'
    (tmp_path / "a.po").write_text(head.format(charset))
    expected = charset if charset.upper() == "UTF-8" else "UTF-8"
    assert Catalog(tmp_path / "a.po").filled([]) == head.format(expected)


def test_what_is_no_message_is_refused_with_its_line(command: Command, tmp_path: Path) -> None:
    messages = tmp_path / "a.po"
    for wrong in ('msgstr ""', "msgid x", 'msgid "x"\nmsgid "y"', '"'):
        messages.write_text(f'msgid "x"\nmsgstr ""\n\n{wrong}\n')
        said = f"a.po, line 4: {wrong.split(chr(10))[0]!r} belongs to no message: msgid, then msgstr"
        assert said in command("--input", messages).complaint
    previous = '#, c-format\n#| msgid "Old"\n'
    messages.write_text(f'{previous}msgid "{LINES[0].strip()}"\nmsgstr ""\n')
    assert command("--input", messages).out.startswith('#, c-format\n#, fuzzy\n#| msgid "Old"\nmsgid "')
    messages.write_text(f'msgid "%s {LINES[0].strip()}"\nmsgstr ""\n')
    assert "line 1: left as it is: its translation would lack %s" in (found := command("--input", messages)).err
    assert found.out == messages.read_text()


def test_a_film_is_translated_and_what_is_lost_is_said_with_its_line(command: Command, tmp_path: Path) -> None:
    head, film = "{}\n00:00:01,000 --> 00:00:04,000\n", tmp_path / "film.srt"
    film.write_text(f"{head.format(1)}{LINES[0]}\n\n{head.format(2)}寺<i>橋\n")
    translated = [command(line).out for line in (LINES[0], "寺橋")]
    found = command("--input", film)
    assert "line 7: no place in its translation for i" in found.err
    texts = re.findall(r"(?<=4,000\n)(?:.+\n)+", found.out)
    assert [" ".join(text.split()) for text in texts] == [text.strip() for text in translated]
    command("--input", film, "--output", tmp_path / "out.srt")
    assert (tmp_path / "out.srt").read_text() == found.out
