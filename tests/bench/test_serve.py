"""The benchmark of the server detects wrong answers; speed is not tested."""

import asyncio
import re
import sys
from pathlib import Path

import pytest
import torch
from tqdm import tqdm

from bench import serve as module
from bench.serve import Answer, Measurement
from tests.tiny import TEXT, run
from tests.utils.serve.served import Scribe, serving, translator
from utils.run import load_run
from utils.serve.service import Limits

TEXTS = TEXT.src[:40]
ALONE = translator()
OFFLINE = {text: found.text for text, found in zip(TEXTS, ALONE.translate(TEXTS), strict=True)}


def judged(answers: list[Answer], offline: dict[str, str] = OFFLINE) -> Measurement:
    return module.judged(answers, 2.0, 4, offline, ALONE)


def test_right_answers_have_no_fault() -> None:
    found = judged([Answer(text, OFFLINE[text], 0.001 * (i + 1)) for i, text in enumerate(TEXTS)])
    assert (found.answers, found.errors, found.mixed_up, found.differing, found.ties) == (40, 0, 0, 0, 0)
    assert found.sentences_per_s == 20
    assert found.p50_ms == pytest.approx(20.5)
    assert found.p99_ms == pytest.approx(40)


def test_each_fault_is_called_by_its_name() -> None:
    right, asked = Answer(TEXTS[0], OFFLINE[TEXTS[0]], 0.1), TEXTS[1]
    assert OFFLINE[TEXTS[2]] != OFFLINE[asked]
    found = judged(
        [right, Answer(asked, OFFLINE[TEXTS[2]], 0.1), Answer(asked, "nonsense", 0.1), Answer(asked, None, 0.1)]
    )
    assert (found.answers, found.mixed_up, found.differing, found.errors, found.ties) == (3, 1, 1, 1, 0)


def test_what_is_found_for_the_text_alone_is_a_tie() -> None:
    asked = TEXTS[1]
    found = judged([Answer(asked, OFFLINE[asked], 0.1)], OFFLINE | {asked: "what a batch has found"})
    assert (found.ties, found.differing, found.mixed_up) == (1, 0, 0)


def test_no_answer_at_all_is_said_so() -> None:
    with pytest.raises(ValueError, match="none of 1 requests was answered"):
        judged([Answer(TEXTS[0], None, 0.1)])


def test_clients_ask_at_once_and_none_the_same() -> None:
    scribe = Scribe()
    direction = {"source": "ja", "target": "en"}
    with serving([scribe.route()], Limits(collect_ms=100)) as url:
        answers, elapsed = asyncio.run(module.besiege(url, direction, TEXTS, 4, 0.5, tqdm(disable=True)))
    assert elapsed >= 0.5
    assert {answer.translation == answer.text[::-1] for answer in answers} == {True}
    assert max(map(len, scribe.calls)) > 1
    assert all(len(set(call)) == len(call) <= 4 for call in scribe.calls)
    assert len(answers) == sum(map(len, scribe.calls))


def test_a_refusal_is_an_error() -> None:
    with serving([Scribe().route()]) as url:
        answers, _ = asyncio.run(
            module.besiege(url, {"source": "fr", "target": "en"}, TEXTS, 1, 0.5, tqdm(disable=True))
        )
    assert answers
    assert all(answer.translation is None for answer in answers)


@pytest.mark.slow
def test_a_server_in_a_process_of_its_own_is_measured(tmp_path: Path) -> None:
    own = load_run(run(tmp_path), torch.device("cpu"))
    one, four = module.measure(own, TEXTS, [1, 4], 0.5, "fp32")
    for found in (one, four):
        assert found.answers > 0
        assert (found.errors, found.mixed_up, found.differing) == (0, 0, 0)
    assert (one.clients, four.clients) == (1, 4)
    assert module.figures([one, four])["together_x"] == four.sentences_per_s / one.sentences_per_s


@pytest.mark.parametrize(
    ("script", "complaint"),
    [("exit 2", r"did not start \(status 2\)"), ("trap '' TERM; echo http://x serves; exit 3", "ended with status 3")],
)
def test_a_server_that_fails_is_said_so(
    script: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ValueError, match=complaint), module.served(tmp_path) as url:
        assert url == "http://x"


def test_the_examples_of_the_help_are_understood() -> None:
    examples = re.findall(r"^ +python -m bench.serve(.*)$", module.build_parser().format_help(), re.M)
    assert len(examples) == 4
    for example in examples:
        module.build_parser().parse_args(re.split(r" {3,}", example)[0].split())


def test_a_run_that_is_not_there_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.serve", "--run", "nowhere"])
    with pytest.raises(ValueError, match="no run nowhere"):
        module.main()
