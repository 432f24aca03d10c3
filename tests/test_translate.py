"""translate.py in this process, on an untrained run: input, output and refusals."""

import argparse
import io
import json
import math
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import translate
from const.path import ROOT
from tests.outcome import Outcome, outcome
from tests.tiny import TEXT, run
from utils.config import TranslationConfig
from utils.run import Run, build_translator, find_run, load_run
from utils.search.constraint import SearchConfig
from utils.search.sampling import SamplingConfig
from utils.search.translator import Candidate, Translation, Translator

LINES = [TEXT.src[0], "", TEXT.src[77], "寺", "  "]


class Typed(io.TextIOWrapper):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


Command = Callable[..., Outcome]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("pickles"))


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs translate.py; the tiny run is the only one."""
    monkeypatch.setattr(translate, "find_run", partial(find_run, root=folder.parent))

    def run_it(*arguments: str | Path, stdin: bytes = b"", typed: bool = False) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["translate.py", *map(str, arguments)])
        kind = Typed if typed else io.TextIOWrapper
        monkeypatch.setattr(sys, "stdin", kind(io.BytesIO(stdin), encoding="utf-8"))
        return outcome("translate.py", translate.main, capsys)

    return run_it


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[str]:
    """Translations of `LINES` by the run."""
    return [t.text for t in load_run(folder, torch.device("cpu")).translator().translate(LINES)]


def as_file(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


def test_the_lines_differ(expected: list[str]) -> None:
    assert len(set(expected)) == 4
    assert [not line for line in expected] == [False, True, False, False, True]


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


def test_a_file_becomes_a_file(command: Command, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "in").write_text(as_file(LINES), encoding="utf-8")
    found = command("--input", tmp_path / "in", "--output", tmp_path / "out")
    assert (found.status, found.out) == (0, "")
    assert (tmp_path / "out").read_text(encoding="utf-8") == as_file(expected)
    assert command("--input", tmp_path / "in").out == as_file(expected)
    assert {file.name for file in tmp_path.iterdir()} == {"in", "out"}


def test_a_text_may_begin_with_a_minus(command: Command) -> None:
    assert command("--", "-5 寺").out == command(stdin="-5 寺\n".encode()).out


def test_lines_and_their_translations_may_come_through_pipes(command: Command, tmp_path: Path) -> None:
    source, given = tmp_path / "in", tmp_path / "given"
    source.write_text("寺\n", encoding="utf-8")
    given.write_text("temple\n", encoding="utf-8")
    expected = command("--input", source, "--score", given).out
    with source.open() as a, given.open() as b:
        assert command("--input", f"/dev/fd/{a.fileno()}", "--score", f"/dev/fd/{b.fileno()}").out == expected


@pytest.mark.parametrize("words", [["\udcff"], ["寺", "--prefix", "\udcff"], ["寺", "--score", "\udcff"]], ids=repr)
def test_bytes_that_are_not_utf_8_are_refused(command: Command, words: list[str]) -> None:
    assert "'\\udcff' is not UTF-8: give the text in UTF-8" in command(*words).complaint


def test_an_unusual_line_separator_ends_no_line(command: Command) -> None:
    found = command(stdin="寺\u2028がある\n橋\n".encode())
    assert found.out.count("\n") == 2


def test_many_lines_come_in_lots_and_in_order(
    command: Command, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 4)
    assert command(stdin=as_file(LINES * 3).encode()).out == as_file(expected * 3)


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


def test_input_that_is_not_utf8_names_the_line_and_leaves_no_file(command: Command, tmp_path: Path) -> None:
    found = command("--output", tmp_path / "out", stdin="寺\n橋\n".encode() + "川\n".encode("euc-jp"))
    assert "standard input, line 3: byte 0xc0 is not UTF-8" in found.complaint
    (tmp_path / "in").write_bytes(b"\x93\x73\n")
    found = command("--input", tmp_path / "in", "--output", tmp_path / "out")
    assert f"{tmp_path / 'in'}, line 1: byte 0x93 is not UTF-8" in found.complaint
    assert [file.name for file in tmp_path.iterdir()] == ["in"]


def test_a_failure_leaves_the_file_that_was_there(command: Command, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("before")
    assert command("--output", tmp_path / "out", stdin=b"\xff").status == 2
    assert (tmp_path / "out").read_text() == "before"


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


def test_a_run_without_weights_says_when_they_come(command: Command, folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        if file.name != "model.safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert "it appears with the first validation" in command("寺", "--run", tmp_path).complaint


@pytest.mark.parametrize("width", ["0", "-2"])
def test_a_beam_of_nothing_is_refused(command: Command, width: str) -> None:
    assert f"--beam {width}: give 1 (greedy) to 1000" in command("寺", "--beam", width).complaint


def test_texts_and_a_file_at_once_are_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("寺\n")
    assert "give one of them" in command("寺", "--input", tmp_path / "in").complaint


def test_a_missing_file_is_named(command: Command, tmp_path: Path) -> None:
    found = command("--input", tmp_path / "nowhere", "--output", tmp_path / "out")
    assert f"no such file: {tmp_path / 'nowhere'}" in found.complaint
    assert not any(tmp_path.iterdir())


def test_an_unknown_option_names_the_nearest(command: Command) -> None:
    assert "unknown option beem: did you mean --beam?" in command("寺", "--beem", "3").complaint


def read_json(text: str) -> list[dict[str, Any]]:
    assert "\\u" not in text
    return [json.loads(line) for line in text.splitlines()]


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


def test_a_translation_begins_as_it_is_told_to(command: Command, expected: list[str]) -> None:
    found = command(*LINES, "--prefix", "There is")
    assert [line[:8] for line in found.out.splitlines()] == [text and "There is" for text in expected]
    assert "'😀' has characters outside the vocabulary" in command("寺", "--prefix", "😀").complaint


def test_alternatives_are_a_table(command: Command) -> None:
    asked = ("寺", "--alternatives", "3", "--max_length", "9")
    best, blank, *rows = command(*asked, "--beam", "1").out.splitlines()
    assert best == command("寺", "--max_length", "9", "--beam", "1").out.strip()
    assert blank == ""
    assert [row.split()[0] for row in rows] == [str(i) for i in range(1, len(rows) + 1)]
    assert [row.count("%") for row in rows] == [3] * len(rows)
    assert len({row.index("│") for row in rows}) == 1
    (row,) = command(*asked, "--prefix", "There is").out.splitlines()[2:]
    assert int(row.split()[0]) > 1
    (fields,) = read_json(command(*asked, "--beam", "1", "--format", "jsonl").out)
    assert [len(position["likeliest"]) for position in fields["alternatives"]] == [3] * len(rows)
    assert "give one sentence" in command("".join(TEXT.src[:8]), "--alternatives", "3").complaint


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


def test_several_runs_are_an_ensemble(command: Command, expected: list[str], folder: Path) -> None:
    assert command(*LINES, "--run", folder, "--run", folder).out == as_file(expected)


def test_drawn_translations_are_those_of_their_seed(command: Command) -> None:
    def drawn(*words: str) -> str:
        return command(*TEXT.src[:3], "--sample", *words).out

    assert drawn() == drawn("--seed", "1")
    assert drawn() != drawn("--seed", "2")
    assert drawn("--n_best", "4").count("\n") == 12
    assert drawn("--minimum_bayes_risk", "--samples", "5").count("\n") == 3


@pytest.mark.parametrize("option", ["--input", "--score"])
def test_a_file_is_not_written_over_what_is_read(command: Command, tmp_path: Path, option: str) -> None:
    (tmp_path / "in").write_text("寺\n", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    other = ("--input", tmp_path / "in") if option == "--score" else ()
    found = command(*other, option, tmp_path / "in", "--output", tmp_path / "link")
    assert found.status == 2
    assert f"--output {tmp_path / 'link'} is the file of --input: give another name" in found.err
    assert (tmp_path / "in").read_text(encoding="utf-8") == "寺\n"


def test_what_is_drawn_for_a_line_does_not_depend_on_how_many_are_read_at_once(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = as_file([TEXT.src[0]] * 4).encode()
    together = command("--sample", stdin=lines).out
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 2)
    assert command("--sample", stdin=lines).out == together
    assert len(set(together.splitlines())) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["寺", "--n_best", "0"], "--n_best 0: give 1 or more"),
        (["寺", "--n_best", "3", "--beam", "2"], "--beam 2 is less than --n_best 3: give --beam 3"),
        (["寺", "--alternatives", "0"], "--alternatives 0: give 1 or more"),
        (["寺", "橋", "--alternatives", "2"], "--alternatives takes one text, but 2 are given: give one"),
        (["寺", "--log_probs"], "--log_probs does not fit in lines of text: add --format jsonl"),
        (["寺", "--alignment"], "--alignment does not fit in lines of text: add --format jsonl"),
        (["寺", "橋", "--score", "temple"], "--score and 2 texts: give one, or two files"),
        (["--score", "nowhere.en"], "no such file: nowhere.en (without a text, --score takes a file of translations)"),
        (["寺", "--score", "temple", "--prefix", "T"], "--score and --prefix at once: give one of them"),
        (["寺", "--temperature", "0.5"], "--temperature 0.5 applies to sampling: add --sample"),
        (["寺", "--max_ratio", "-1"], "--min_ratio 0.0: give 0 to --max_ratio -1.0"),
        (["寺", "--format", "xml"], "xml"),
        (["--input", "."], ". is a folder: give a file"),
        (["寺", "--beam", "2000"], "--beam 2000: give 1 (greedy) to 1000"),
        (["寺", "--sample", "--samples", "20000"], "--samples 20000: give 1 to 10000"),
        (["寺", "--sample", "--temperature", "1e-30"], "--temperature 1e-30: give 1e-05 or more"),
        (["-5度です"], "unrecognized arguments: -5度です: put -- before a text that begins with -"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_what_makes_no_sense_is_refused_before_anything_is_loaded(
    command: Command, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(translate, "load_run")
    assert message in command(*words).complaint


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


# attention of heads


def page_data(page: Path) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.S)
    return json.loads(text)


def test_attention_is_drawn_beside_the_translation(command: Command, expected: list[str], tmp_path: Path) -> None:
    for name in ("a.html", "a.png"):
        found = command(LINES[0], "--attention", tmp_path / "new" / name)
        assert (found.status, found.out, found.err) == (0, as_file(expected[:1]), "")
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"a.html", "a.png"}
    with Image.open(tmp_path / "new" / "a.png") as picture:
        assert picture.format == "PNG"
    tokens = page_data(tmp_path / "new" / "a.html")["target"]["tokens"]
    assert "".join(tokens).replace("▁", " ").strip() == expected[0]


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["寺", "--attention", "a.svg"], "a.svg is neither .html nor .png: give the file one of these extensions"),
        (["寺", "--attention", "a"], "a is neither .html nor .png"),
        (["寺", "橋", "--attention", "a.png"], "--attention takes one text, but 2 are given: give one"),
        (["--attention", "a.png"], "--attention takes one text, but 0 are given: give one"),
        (["--input", __file__, "--attention", "a.png"], "--attention takes one text: give the text in place of"),
        (
            ["寺", "--run", "x", "--run", "y", "--attention", "a.png"],
            "--attention takes one run, but 2 are given: give one --run",
        ),
        (["寺", "--format", "pharaoh", "--score", "a"], "--format pharaoh and --score at once: give one of them"),
        (["寺", "--format", "pharaoh", "--alternatives", "2"], "--format pharaoh and --alternatives at once"),
        (["寺", "--format", "pharaoh", "--n_best", "2"], "a line per text, --n_best 2 several: give one of them"),
        (["寺", "--format", "pharaoh", "--log_probs"], "--log_probs does not fit in lines of text: add --format jsonl"),
    ],
    ids=lambda words: " ".join(words[:4]).replace(__file__, "FILE") if isinstance(words, list) else "",
)
def test_what_cannot_be_drawn_or_linked_is_refused_before_anything_is_loaded(
    command: Command, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(translate, "load_run")
    assert message in command(*words).complaint


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([""], "'' has no token: give a sentence"),
        (["".join(TEXT.src[:8])], "are more than the 32 that "),
        (["寺", "--score", ""], "'' has no token: give a translation"),
        (["寺", "--score", "Kyoto " * 30], "are more than the 48 that "),
        (["😀"], "no part of '😀' is in the vocabulary: give a sentence that the run can read"),
    ],
)
def test_attention_needs_a_text_that_is_read_at_once(
    command: Command, words: list[str], message: str, tmp_path: Path
) -> None:
    assert message in command(*words, "--attention", tmp_path / "a.html").complaint
    assert not any(tmp_path.iterdir())


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
