"""translate.py on an untrained run: lines as they arrive, what is shown of them, options, the prompt."""

import argparse
import builtins
import io
import json
import math
import os
import pty
import re
import readline
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import translate
from config.search import SamplingConfig, SearchConfig
from const.path import ROOT
from tests.outcome import Outcome, outcome
from tests.tiny import TEXT, run, tokenizers, translating
from utils.command import Parser
from utils.config import TranslationConfig
from utils.run import Run, build_translator, find_run, load_run
from utils.search.inspection import Judgement, Position
from utils.search.translator import Candidate, Translation, Translator
from utils.terminal.input import (
    Conversation,
    LineStream,
    count_lines,
    history_file,
    in_chunks,
    kept_history,
    paired,
    typed_lines,
)
from utils.terminal.option import add_search_options, sampling_config, search_config
from utils.terminal.output import Notice, NoticeBoard, alternatives_table, judgement_notices, judgement_table, notices

LINES = [TEXT.src[0], "", TEXT.src[77], "寺", "  "]
LINE = TEXT.src[0]

Command = Callable[..., Outcome]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("pickles"))


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs translate.py; the tiny run is the only one."""
    monkeypatch.setattr(translate, "find_run", partial(find_run, root=folder.parent))

    def run_it(*arguments: str | Path, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["translate.py", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        return outcome("translate.py", translate.main, capsys)

    return run_it


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[str]:
    """Translations of `LINES` by the run."""
    return [t.text for t in load_run(folder, torch.device("cpu")).translator().translate(LINES)]


def as_file(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


def read_json(text: str) -> list[dict[str, Any]]:
    assert "\\u" not in text
    return [json.loads(line) for line in text.splitlines()]


# lines


def test_texts_are_translated_one_a_line(command: Command, expected: list[str], folder: Path) -> None:
    assert command(*LINES).out == as_file(expected)
    assert command(LINES[0], "--run", folder).out == as_file(expected[:1])


def test_a_text_with_a_line_end_stays_one_line(command: Command) -> None:
    found = command(f"{LINES[0]}\n{LINES[2]}", "寺")
    assert found.status == 0
    assert found.out.count("\n") == 2
    assert found.out == command(f"{LINES[0]} {LINES[2]}", "寺").out


def test_standard_input_is_translated_line_by_line(command: Command, expected: list[str]) -> None:
    for text in (as_file(LINES), as_file(LINES)[:-1], "\ufeff" + as_file(LINES), as_file(LINES).replace("\n", "\r\n")):
        found = command(stdin=text.encode())
        assert (found.status, found.out) == (0, as_file(expected))
    assert command(stdin=b"").out == ""


def test_lines_and_their_translations_may_come_through_pipes(command: Command, tmp_path: Path) -> None:
    source, given = tmp_path / "in", tmp_path / "given"
    source.write_text("寺\n", encoding="utf-8")
    given.write_text("temple\n", encoding="utf-8")
    expected = command("--input", source, "--score", given).out
    with source.open() as a, given.open() as b:
        assert command("--input", f"/dev/fd/{a.fileno()}", "--score", f"/dev/fd/{b.fileno()}").out == expected


def test_an_unusual_line_separator_ends_no_line(command: Command) -> None:
    found = command(stdin="寺\u2028がある\n橋\n".encode())
    assert found.out.count("\n") == 2


def test_what_is_before_a_wrong_line_is_translated(
    command: Command, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = command(stdin=as_file(LINES[:3]).encode() + b"\xff\n")
    assert (broken.status, broken.out) == (2, as_file(expected[:3]))
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 2)
    broken = command(stdin=as_file(LINES[:3]).encode() + b"\xff\n")
    assert (broken.status, broken.out) == (2, as_file(expected[:3]))


def test_a_line_is_handed_on_while_the_next_one_is_waited_for(
    folder: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (there, mouth), (ear, back) = os.pipe(), os.pipe()
    heard: list[str] = []

    def converse() -> None:
        with os.fdopen(mouth, "wb", buffering=0) as speak, os.fdopen(ear, encoding="utf-8") as listen:
            for line in LINES:
                speak.write(f"{line}\n".encode())
                heard.append(listen.readline())

    person = threading.Thread(target=converse)
    person.start()
    with os.fdopen(there, encoding="utf-8") as stdin, os.fdopen(back, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "argv", ["translate.py", "--run", str(folder)])
        translate.main()
    person.join()
    assert heard == [line + "\n" for line in expected]


class Endless(io.BufferedIOBase):
    """A huge number of lines, generated as they are read."""

    def __init__(self, n_lines: int) -> None:
        self.n_lines, self.n_read = n_lines, 0

    def read1(self, size: int = -1, /) -> bytes:
        n = min(size // 2, self.n_lines - self.n_read)
        self.n_read += n
        return b"a\n" * n


def test_of_very_many_lines_few_are_held(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, n_done, most_held = Endless(100_000), 0, 0

    def translate_at_once(_self: Translator, texts: Sequence[str], *_: object) -> list[Translation]:
        nonlocal n_done, most_held
        most_held = max(most_held, lines.n_read - n_done)
        n_done += len(texts)
        return [Translation([Candidate(text, 0.0, [])], 1, 0, False) for text in texts]

    monkeypatch.setattr(Translator, "translate", translate_at_once)
    monkeypatch.setattr(sys, "stdin", argparse.Namespace(buffer=lines, isatty=lambda: False))
    monkeypatch.setattr(sys, "argv", ["translate.py", "--run", str(folder)])
    translate.main()
    assert capsys.readouterr().out.count("a\n") == n_done == 100_000
    assert most_held < 40_000


@pytest.mark.parametrize("option", ["--input", "--score"])
def test_a_file_is_not_written_over_what_is_read(command: Command, tmp_path: Path, option: str) -> None:
    (tmp_path / "in").write_text("寺\n", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    other = ("--input", tmp_path / "in") if option == "--score" else ()
    found = command(*other, option, tmp_path / "in", "--output", tmp_path / "link")
    assert found.status == 2
    assert f"--output {tmp_path / 'link'} is the file of --input: give another name" in found.err
    assert (tmp_path / "in").read_text(encoding="utf-8") == "寺\n"


def chunks_of(content: bytes, most: int = 3) -> list[list[str]]:
    stream = LineStream(BytesIO(content))
    return list(in_chunks((line.decode() for line in stream), stream.is_ready, most))


@pytest.mark.parametrize(
    "content", [b"", b"a\nb\n", b"a\nb", b"\n\n", b"\n", "a\u2028b\r\nc\x85\n".encode(), b"a" * 99]
)
def test_lines_are_those_of_a_file(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(LineStream(BytesIO(content))) == list(BytesIO(content))
    monkeypatch.setattr("utils.terminal.input._CHUNK", 1)  # a line may come in many pieces
    assert list(LineStream(BytesIO(content))) == list(BytesIO(content))


@pytest.fixture
def pipe() -> Iterator[tuple[LineStream, int]]:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as file:
        yield LineStream(file), writer


def test_what_is_there_comes_at_once_and_nothing_is_waited_for(pipe: tuple[LineStream, int]) -> None:
    stream, writer = pipe
    chunks = in_chunks((line.decode() for line in stream), stream.is_ready, 3)
    os.write(writer, b"a\n")
    assert next(chunks) == ["a\n"]
    os.write(writer, b"b\nc\nd\ne\nhal")
    assert next(chunks) == ["b\n", "c\n", "d\n"]
    assert next(chunks) == ["e\n"]
    os.write(writer, b"f\ng\n")
    assert next(chunks) == ["half\n", "g\n"]
    os.write(writer, b"last")
    os.close(writer)
    assert list(chunks) == [["last"]]


@pytest.mark.parametrize(("content", "n"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"\n\nb", 3), (b"a\n" * 2**20, 2**20)])
def test_lines_are_counted_as_they_are_read(content: bytes, n: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    assert count_lines(tmp_path / "a") == n


def test_a_pipe_is_not_read_to_count_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert count_lines(tmp_path / "pipe") is None


def test_lines_are_paired_across_lots() -> None:
    chunks = [["a", "b"], ["c"]]
    assert list(paired(chunks, iter("xyz"), ("A", "B"))) == [[("a", "x"), ("b", "y")], [("c", "z")]]
    assert list(paired([], iter([]), ("A", "B"))) == []


@pytest.mark.parametrize(
    ("n_others", "pairs", "message"),
    [(0, 0, "B ends after 0 lines, A has more"), (2, 2, "B ends after 2"), (4, 3, "A ends after 3 lines, B has more")],
)
def test_a_side_that_ends_first_is_named_after_the_pairs_before(n_others: int, pairs: int, message: str) -> None:
    found: list[list[tuple[str, str]]] = []
    chunks = paired([["a", "b"], ["c"]], iter("wxyz"[:n_others]), ("A", "B"))
    with pytest.raises(ValueError, match=message):
        found.extend(chunks)
    assert sum(len(chunk) for chunk in found) == pairs


# what is shown


def test_what_a_reader_must_know_is_said_with_its_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 2)
    long, endless = "".join(TEXT.src[:8]), "京都に古い寺" * 20
    found = command(stdin=as_file(["寺", "😀", long, endless]).encode())
    unknown, pieces, lost = found.err.splitlines()
    assert unknown == "line 2: no part of it is in the vocabulary; left unchanged"
    assert pieces.startswith("line 3: long; translated in ")
    assert lost.startswith("line 4: a sentence is longer than the model's window; ")
    assert found.out.splitlines()[1] == "😀"
    assert command(endless, "--alternatives", "2").err.startswith("line 1: a sentence is longer than the model's ")
    many = command(stdin=as_file(["😀"] * 12).encode()).err.splitlines()
    assert many[9:] == [
        unknown.replace("line 2", "line 10"),
        "2 more lines: left unchanged; --format jsonl tells which",
    ]


def test_raw_text_for_a_run_of_tokenized_text_is_remarked_on_once(
    command: Command, folder: Path, tmp_path: Path
) -> None:
    tokenized = tmp_path / "tokenized"
    shutil.copytree(folder, tokenized)
    config = TranslationConfig.load(folder / "config.yaml")
    replace(config, data=replace(config.data, corpus="multi30k_tok")).save(tokenized / "config.yaml")
    said = "this run learned from text where spaces separate all words and marks: "
    assert command(TEXT.src[0], "--run", tokenized).err.startswith(said)
    assert command(stdin=as_file(TEXT.src[:3]).encode()).err == ""
    assert command("--run", tokenized, stdin=as_file(TEXT.src * 30).encode()).err.count(said) == 1
    assert said not in command("寺 。", "--run", tokenized).err


def test_n_best_translations_are_a_list_as_moses_writes_it(command: Command, expected: list[str]) -> None:
    found = command("--n_best", "2", stdin=as_file(LINES).encode())
    rows = [line.split("\t") for line in found.out.splitlines()]
    assert [number for number, *_ in rows] == ["1", "1", "2", "3", "3", "4", "4", "5"]
    best = {number: text for number, _, text in reversed(rows)}
    assert list(reversed(best.values())) == expected
    for (number, score, _), (next_number, next_score, _) in pairwise(rows):
        assert number != next_number or float(score) >= float(next_score)


def test_json_has_what_is_cheap_and_what_is_asked_for(command: Command, expected: list[str]) -> None:
    plain = read_json(command("--format", "jsonl", stdin=as_file(LINES).encode()).out)
    assert [row["source"] for row in plain] == LINES
    assert [row["translation"] for row in plain] == expected
    cheap = {"source", "translation", "score", "tokens", "pieces", "lost_tokens", "unknown", "unknown_tokens"}
    assert all(set(row) == cheap for row in plain)
    rich = read_json(
        command(
            *("--format", "jsonl", "--n_best", "2", "--log_probs", "--alignment"), stdin=as_file(LINES).encode()
        ).out
    )
    for row, text in zip(rich, expected, strict=True):
        assert set(row) == cheap | {"n_best", "log_probs", "source_tokens", "alignment"}
        assert row["n_best"][0] == {key: row[key] for key in ("translation", "score", "tokens")}
        assert row["translation"] == text
        if text:
            length = len(row["tokens"]) + 1
            assert len(row["n_best"]) == 2
            assert sum(row["log_probs"]) / SearchConfig().penalty(length) == pytest.approx(row["score"], abs=0.01)
            links = [tuple(map(int, link.split("-"))) for link in row["alignment"].split()]
            assert [target for _, target in links] == list(range(length - 1))
            assert max(source for source, _ in links) < len(row["source_tokens"])
        else:
            assert (row["pieces"], row["log_probs"], row["alignment"]) == (0, None, None)


def test_a_given_translation_is_scored_by_token(command: Command) -> None:
    found = command(TEXT.src[0], "--score", TEXT.tgt[0])
    *rows, blank, total = found.out.splitlines()
    assert blank == ""
    assert rows[-1].split()[0] == "</s>"
    assert f" {len(rows)} tokens, perplexity " in total
    (fields,) = read_json(command(TEXT.src[0], "--score", TEXT.tgt[0], "--format", "jsonl").out)
    assert fields["translation"] == TEXT.tgt[0]
    assert f"log-probability {fields['log_prob']:.4f}," in total
    assert sum(fields["log_probs"]) == pytest.approx(fields["log_prob"], abs=0.01)


def test_given_translations_are_scored_line_by_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src, tgt = [*TEXT.src[:3], ""], [*TEXT.tgt[:3], ""]
    (tmp_path / "src").write_text(as_file(src), encoding="utf-8")
    (tmp_path / "tgt").write_text(as_file(tgt), encoding="utf-8")
    found = command("--input", tmp_path / "src", "--score", tmp_path / "tgt")
    rows = [[float(cell) for cell in line.split("\t")] for line in found.out.splitlines()]
    assert len(rows) == 4
    assert rows[3] == [0, 0, 1]
    n_tokens = int(sum(n for _, n, _ in rows))
    together = math.exp(-sum(log_prob for log_prob, *_ in rows) / n_tokens)
    assert found.err == f"4 lines, {n_tokens} tokens with </s>, perplexity {together:.2f}\n"
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 2)
    in_chunks = command("--score", tmp_path / "tgt", stdin=as_file(src).encode()).out
    assert [float(cell) for cell in in_chunks.split()] == pytest.approx([x for row in rows for x in row], rel=1e-4)
    for lines, first, other in ((src[:3], "standard input", "tgt"), ([*src, "寺"], "tgt", "standard input")):
        short = command("--score", tmp_path / "tgt", stdin=as_file(lines).encode())
        assert short.status == 2
        assert re.search(rf"{first} ends after \d lines, \S*{other} has more", short.err)


def test_words_and_their_links_are_lines(command: Command, expected: list[str]) -> None:
    long = "".join(TEXT.src[:8])
    found = command("--format", "pharaoh", stdin=as_file([*LINES, long, TEXT.src[5]]).encode())
    rows = [line.split("\t") for line in found.out.split("\n")[:-1]]
    assert [len(row) for row in rows] == [3] * 7
    assert [row[1] for row in rows[:5]] == [" ".join(text.split()) for text in expected]
    assert rows[1] == rows[4] == ["", "", ""]
    assert rows[5][0] == long
    assert rows[5][2] == ""
    (record,) = read_json(command(TEXT.src[5], "--format", "jsonl", "--alignment").out)
    assert rows[6][0].split() == [token.replace("▁", "") for token in record["source_tokens"] if token != "▁"]
    for i in (0, 2, 3, 6):
        source, target, links = (field.split() for field in rows[i])
        pairs = [tuple(map(int, link.split("-"))) for link in links]
        assert pairs
        assert pairs == sorted(set(pairs), key=lambda pair: (pair[1], pair[0]))
        assert max(s for s, _ in pairs) < len(source)
        assert max(t for _, t in pairs) < len(target)


@pytest.mark.parametrize(("n", "rest"), [(10, []), (11, ["1 more line: odd"]), (1244, ["1,234 more lines: odd"])])
def test_only_the_first_notices_of_a_kind_are_said_and_the_rest_counted(n: int, rest: list[str]) -> None:
    said: list[str] = []
    board = NoticeBoard(said.append)
    for number in range(1, n + 1):
        board.post(number, [Notice("odd", f"{number} is odd")])
    board.post(n, [Notice("even", "even")])
    board.conclude()
    first = [f"line {number}: {number} is odd" for number in range(1, 11)]
    assert said == [*first, f"line {n}: even", *(f"{line}; --format jsonl tells which" for line in rest)]


def test_notices_are_of_different_kinds_and_tables_stand_in_columns_of_a_terminal() -> None:
    found = notices(Translation([Candidate("a", 0.0, [])], 3, 5, False, 2))
    assert [notice.text.split()[0] for notice in found] == ["2", "a"]
    judgement = Judgement(["▁a", "都", "</s>"], [-0.5, -10.0, -1.5], 1, 2)
    assert len({notice.kind for notice in [*found, *judgement_notices(judgement)]}) == 2
    assert judgement_table(judgement) == [
        *("▁a    60.7 %", "都    <0.1 %", "</s>  22.3 %", ""),
        "log-probability -12.0000, 3 tokens, perplexity 54.60",
    ]
    positions = [Position(9, "京都", [("京都", -0.1), ("a", -3.0)]), Position(10, "</s>", [("</s>", -0.01)])]
    assert alternatives_table(positions) == [
        " 9  京都  │  京都  90.5 %  a  5.0 %",
        "10  </s>  │  </s>  99.0 %",
    ]


# runs and options


def test_without_a_run_the_demo_is_named(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate, "find_run", partial(find_run, root=tmp_path))
    assert "python train.py --config demo" in command("寺").complaint
    assert f"no run {tmp_path / 'x'}: " in command("寺", "--run", tmp_path / "x").complaint


def test_a_run_is_found_by_its_name_alone(
    command: Command, folder: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translate, "find_run", partial(find_run, root=folder.parent))
    assert command(LINES[0], "--run", folder.name).out == as_file(expected[:1])
    assert (
        f"no run {folder.name[:-1]}: did you mean {folder.name}?" in command("寺", "--run", folder.name[:-1]).complaint
    )


def test_the_search_is_that_of_the_run_until_told_otherwise(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[SearchConfig, SamplingConfig | None, bool, str]] = []

    def watched(
        runs: list[Run], search: SearchConfig, sampling: SamplingConfig | None, risk: bool, precision: Any
    ) -> Translator:
        used.append((search, sampling, risk, precision))
        return build_translator(runs, search, sampling, risk, precision)

    monkeypatch.setattr(translate, "build_translator", watched)
    wide, greedy = command(*TEXT.src[:20]).out, command(*TEXT.src[:20], "--beam", "1").out
    assert wide != greedy
    command("寺", "--length_penalty", "-3", "--normalization", "length", "--precision", "bf16")
    command("寺", "--beam", "3", "--minimum_bayes_risk", "--no_repeat_ngram", "2")
    command("寺", "--sample", "--n_best", "3", "--seed", "5")
    assert used == [
        (SearchConfig(2), None, False, "fp32"),
        (SearchConfig(1), None, False, "fp32"),
        (SearchConfig(2, -3.0, "length"), None, False, "bf16"),
        (SearchConfig(3, no_repeat_ngram=2), None, True, "fp32"),
        (SearchConfig(2), SamplingConfig(3, seed=5), False, "fp32"),
    ]


def test_drawn_translations_are_those_of_their_seed(command: Command) -> None:
    def drawn(*words: str) -> str:
        return command(*TEXT.src[:3], "--sample", *words).out

    assert drawn() == drawn("--seed", "1")
    assert drawn() != drawn("--seed", "2")
    assert drawn("--n_best", "4").count("\n") == 12
    assert drawn("--minimum_bayes_risk", "--samples", "5").count("\n") == 3


def test_what_is_drawn_for_a_line_does_not_depend_on_how_many_are_read_at_once(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = as_file([TEXT.src[0]] * 4).encode()
    together = command("--sample", stdin=lines).out
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 2)
    assert command("--sample", stdin=lines).out == together
    assert len(set(together.splitlines())) == 4


def page_data(page: Path) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.S)
    return json.loads(text)


def test_the_translation_whose_attention_is_drawn_is_the_one_that_is_asked_for(
    command: Command, tmp_path: Path
) -> None:
    def drawn(*words: str) -> str:
        found = command(LINES[0], "--attention", tmp_path / "a.html", "--format", "jsonl", *words)
        (row,) = read_json(found.out)
        assert page_data(tmp_path / "a.html")["target"]["tokens"] == row["tokens"]
        return row["translation"]

    ways = [[], ["--prefix", "Uji"], ["--sample", "--seed", "3"], ["--beam", "4", "--minimum_bayes_risk"]]
    assert len({drawn(*way) for way in ways}) >= 3
    given = command(TEXT.src[0], "--score", TEXT.tgt[0], "--attention", tmp_path / "a.html")
    assert given.out.splitlines()[-1].startswith("log-probability ")
    data = page_data(tmp_path / "a.html")
    assert "".join(data["target"]["tokens"]).replace("▁", " ").strip() == TEXT.tgt[0]
    assert "".join(data["source"]["tokens"]).replace("▁", "") == TEXT.src[0]


OWN = SearchConfig(beam_size=2, length_penalty=0.9, max_ratio=3.0)


def search(*words: str, n_best: int = 1) -> SearchConfig:
    return search_config(OWN, parser().parse_args(list(words)), n_best)


def sampling(*words: str, n_best: int = 1) -> SamplingConfig | None:
    return sampling_config(parser().parse_args(list(words)), n_best)


def parser() -> Parser:
    made = Parser(prog="verb.py")
    add_search_options(made)
    return made


def test_what_is_not_given_stays_as_the_run_has_it() -> None:
    assert search() == OWN
    assert sampling() is None


def test_every_option_reaches_its_setting() -> None:
    words = (
        "--beam 5 --length_penalty -1 --normalization length --min_length 2 --max_length 9 --min_ratio 0.1 "
        "--max_ratio 4 --no_repeat_ngram 3"
    )
    assert search(*words.split()) == SearchConfig(5, -1.0, "length", 2, 0.1, 9, 4.0, 3)
    words = "--sample --samples 7 --temperature 0.5 --top_k 10 --top_p 0.9 --seed 4"
    assert sampling(*words.split()) == SamplingConfig(7, 0.5, 10, 0.9, 4)


def test_a_beam_is_wide_enough_for_what_is_shown() -> None:
    assert search(n_best=5).beam_size == 5
    assert search("--beam", "8", n_best=5).beam_size == 8
    with pytest.raises(ValueError, match="--beam 4 is less than --n_best 5: give --beam 5"):
        search("--beam", "4", n_best=5)
    assert search("--sample", n_best=5).beam_size == 2


def test_as_many_are_drawn_as_are_shown_and_more_to_choose_by_risk() -> None:
    def n_samples(*words: str, n_best: int) -> int:
        found = sampling("--sample", *words, n_best=n_best)
        assert found is not None
        return found.n_samples

    assert n_samples(n_best=1) == 1
    assert n_samples(n_best=6) == 6
    assert n_samples("--minimum_bayes_risk", n_best=1) == 32
    assert n_samples("--minimum_bayes_risk", n_best=50) == 50
    assert n_samples("--samples", "9", n_best=6) == 9
    with pytest.raises(ValueError, match="--samples 4 is less than --n_best 5: give --samples 5"):
        n_samples("--samples", "4", n_best=5)


def test_choosing_by_risk_among_drawn_ones_needs_no_beam() -> None:
    greedy = replace(OWN, beam_size=1)
    asked = parser().parse_args(["--sample", "--minimum_bayes_risk"])
    assert search_config(greedy, asked) == greedy


# the prompt


@pytest.fixture
def own_history() -> Iterator[None]:
    readline.clear_history()
    yield
    readline.clear_history()


@pytest.fixture
def talk() -> Conversation:
    search = SearchConfig(beam_size=2, max_ratio=1.0)
    return Conversation(Translator(translating(), tokenizers(), "en", search, 14, 48, torch.device("cpu")))


def test_the_best_ones_are_numbered_and_scored(talk: Conversation) -> None:
    assert talk.answer(":n 3") == ["n 3, beam 3, length_penalty 0.6"]
    (found,) = talk.translator.translate([LINE], n_best=3)
    shown = talk.answer(LINE)
    assert [line.split(maxsplit=2) for line in shown] == [
        [str(i), f"{candidate.score:.4f}", candidate.text.strip()] for i, candidate in enumerate(found.candidates, 1)
    ]
    assert len(shown) == 3


def test_a_narrower_beam_shows_fewer(talk: Conversation) -> None:
    talk.answer(":n 4")
    assert talk.answer(":beam 2") == ["n 2, beam 2, length_penalty 0.6"]
    assert talk.answer(":n 1") == ["n 1, beam 2, length_penalty 0.6"]


def test_as_many_are_drawn_as_are_asked_for(talk: Conversation) -> None:
    talk.translator.sampling = SamplingConfig(2)
    talk.answer(":n 5")
    assert talk.translator.sampling == SamplingConfig(5)
    assert talk.translator.search.beam_size == 2
    assert len(talk.answer(LINE)) == 5


def test_a_prefix_holds_until_it_is_taken_back(talk: Conversation) -> None:
    freely = talk.answer(LINE)
    assert talk.answer(":prefix There is") == ["n 1, beam 2, length_penalty 0.6, prefix 'There is'"]
    assert talk.answer(LINE)[0].startswith("There is")
    talk.answer(":prefix")
    assert talk.answer(LINE) == freely


def test_what_a_reader_must_know_stands_below(talk: Conversation) -> None:
    assert talk.answer("😀") == ["😀", "(no part of it is in the vocabulary; left unchanged)"]
    assert talk.answer("".join(TEXT.src[:3]))[1:] == ["(long; translated in 3 pieces)"]


@pytest.mark.parametrize("command", [":q", ":quit", ": quit "])
def test_it_ends_when_told_to(talk: Conversation, command: str) -> None:
    assert talk.answer(":help")[0].startswith("  :n N ")
    assert not talk.is_over
    assert talk.answer(command) == []
    assert talk.is_over


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (":n", ":n: give a whole number of at least 1, such as :n 4"),
        (":n 0", ":n 0: give a whole number"),
        (":beam wide", ":beam wide: give a whole number"),
        (":length_penalty x", ":length_penalty x: give a number"),
        (":length_penalty 99", "length_penalty=99.0: give -10 to 10"),
        (":bem 3", "unknown command :bem: see :help"),
        (":", "unknown command :: see :help"),
    ],
)
def test_a_command_that_cannot_be_obeyed_changes_nothing(talk: Conversation, command: str, message: str) -> None:
    before = talk.settings()
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is compared below)
        talk.answer(command)
    assert message in str(caught.value)
    assert talk.settings() == before


def test_the_history_lies_where_the_specification_wants_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "miyako" / "history"
    for unset in ("", None):
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("XDG_STATE_HOME", "") if unset == "" else monkeypatch.delenv("XDG_STATE_HOME")
        assert history_file() == tmp_path / "home" / ".local" / "state" / "miyako" / "history"


@pytest.mark.usefixtures("own_history")
def test_who_has_no_home_has_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert history_file() is None
    with kept_history(None):
        readline.add_history("京都は")
        assert readline.get_history_item(1) == "京都は"


@pytest.mark.usefixtures("own_history")
def test_what_was_typed_is_there_the_next_time(tmp_path: Path) -> None:
    file = tmp_path / "state" / "history"
    with kept_history(file):
        readline.add_history("京都は")
    readline.clear_history()
    with suppress(KeyboardInterrupt), kept_history(file):
        assert readline.get_history_item(1) == "京都は"
        readline.add_history("奈良は")
        raise KeyboardInterrupt
    assert file.read_text(encoding="utf-8").splitlines()[-2:] == ["京都は", "奈良は"]


def test_a_history_that_cannot_be_kept_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with kept_history(tmp_path / "file" / "history"):
        readline.add_history("京都は")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_blank_lines_are_passed_over_and_the_end_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["a", "", "  ", "b"])
    asked = []

    def typed(prompt: str) -> str:
        asked.append(prompt)
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(builtins, "input", typed)
    assert list(typed_lines("? ")) == ["a", "b"]
    assert asked == ["? "] * 5
    assert capsys.readouterr().out == ""


def test_the_prompt_remembers_answers_and_obeys(folder: Path, expected: list[str], tmp_path: Path) -> None:
    state = tmp_path / "miyako" / "history"
    state.parent.mkdir()
    state.write_text(f"{LINES[0]}\n", encoding="utf-8")
    ours, theirs = pty.openpty()
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"}
    command = [sys.executable, "translate.py", "--run", str(folder), "--device", "cpu"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as program:
        os.close(theirs)
        shown = ""

        def wait_for(text: str) -> str:
            nonlocal shown
            while text not in shown:
                shown += os.read(ours, 4096).decode("utf-8", "replace")
            before, shown = shown.split(text, 1)
            return before

        assert "tiny-" in wait_for("> ")
        os.write(ours, b"\x10\n")  # the previous line, from an earlier session
        assert expected[0] in wait_for("\n> ")
        os.write(ours, b":n 2\n")
        assert "n 2, beam 2" in wait_for("\n> ")
        os.write(ours, f"{LINES[2]}\n".encode())
        assert f"  {expected[2]}" in wait_for("\n> ")
        os.write(ours, b":beam 0\n")
        assert ":beam 0: give a whole number" in wait_for("\n> ")
        os.write(ours, b"\x04")
        assert program.wait() == 0
        os.close(ours)
    assert state.read_text(encoding="utf-8").splitlines()[-2:] == [LINES[2], ":beam 0"]
