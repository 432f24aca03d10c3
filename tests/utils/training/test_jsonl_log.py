"""What is written down, and what a resumed run makes of it."""

import json
import math
from pathlib import Path

import pytest

from tests.utils.training.reports import REPORT, SAMPLE, VALIDATION, at
from utils.training.report import JsonlLog, read_log


def refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is no JSON")


def records(path: Path) -> list[dict[str, object]]:
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line, parse_constant=refuse) for line in lines]


def written(path: Path, *steps: int) -> Path:
    log = JsonlLog(path, 0)
    for step in steps:
        log.on_step(at(step), REPORT)
        if step % 20 == 0:
            log.on_validation(at(step), VALIDATION)
    log.close()
    return path


def test_the_log_holds_a_line_a_report_and_a_line_a_validation(tmp_path: Path) -> None:
    train, dev = records(written(tmp_path / "log.jsonl", 20))
    assert train == {"kind": "train", "step": 20, "epoch": 1, "minutes": 2.0, **REPORT._asdict()}
    assert dev["kind"] == "dev"
    assert (dev["loss"], dev["bleu"], dev["chrf"], dev["perplexity"]) == (2, 12.34, 45.67, pytest.approx(7.389056))
    assert dev["samples"] == [SAMPLE._asdict()]
    assert dev["bleu_signature"] == "nrefs:1|tok:13a"


def test_the_log_can_be_followed_while_it_is_written(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "log.jsonl", 0)
    log.on_step(at(1), REPORT)
    assert len(records(tmp_path / "log.jsonl")) == 1
    log.on_validation(at(1), VALIDATION)
    assert len(records(tmp_path / "log.jsonl")) == 2
    log.close()


def test_a_resumed_run_drops_what_was_lost_and_goes_on(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", 10, 20, 30)
    log = JsonlLog(path, 20)
    log.on_step(at(25), REPORT)
    log.close()
    assert [(record["kind"], record["step"]) for record in records(path)] == [
        ("train", 10),
        ("train", 20),
        ("dev", 20),
        ("train", 25),
    ]
    assert records(path)[2]["samples"] == [SAMPLE._asdict()]
    assert [file.name for file in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_line_that_a_crash_has_cut_off_is_no_hindrance(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", 10, 20)
    path.write_bytes(path.read_bytes()[:-40])
    log = JsonlLog(path, 20)
    log.on_step(at(30), REPORT)
    log.close()
    assert [record["step"] for record in records(path)] == [10, 20, 30]


def test_a_run_resumed_again_and_again_from_older_checkpoints_has_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for resumed_at, until in ((0, 60), (40, 50), (20, 80), (80, 90)):
        log = JsonlLog(path, resumed_at)
        for step in range(resumed_at + 10, until + 1, 10):
            log.on_step(at(step), REPORT._replace(target_tokens=until))
            if step % 20 == 0:
                log.on_validation(at(step), VALIDATION)
        log.close()
        path.write_bytes(path.read_bytes() + b'{"kind": "train", "st')  # killed while it wrote
    kept = [(record["kind"], record["step"], record.get("target_tokens")) for _, record in read_log(path)]
    assert [step for kind, step, _ in kept if kind == "train"] == list(range(10, 91, 10))
    assert [step for kind, step, _ in kept if kind == "dev"] == [20, 40, 60, 80]
    assert [until for kind, _, until in kept if kind == "train"] == [60, 60, *[80] * 6, 90]


@pytest.mark.parametrize(
    "damaged",
    [
        b"\0" * 40,
        b"\xff\xfe",
        b'{"kind": "train", "step": 1',
        b"[1]",
        b"7",
        b'{"kind": "dev"}',
        b'{"kind": "dev", "step": 1e999}',
        b'{"kind": "dev", "step": "3"}',
        b"",
    ],
)
def test_what_the_disk_has_damaged_is_left_out_and_the_rest_is_kept(damaged: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", 10, 20)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], damaged + b"\n", *lines[1:]]))
    assert [record["step"] for _, record in read_log(path)] == [10, 20, 20]
    JsonlLog(path, 20).close()
    assert path.read_bytes() == b"".join(lines)


def test_numbers_that_json_has_no_word_for_are_null(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "log.jsonl", 0)
    log.on_step(at(10), REPORT._replace(loss=math.nan, gradient_norm=math.inf, skipped=10))
    log.on_validation(at(10), VALIDATION._replace(loss=math.nan))
    log.close()
    train, dev = records(tmp_path / "log.jsonl")
    assert train["loss"] is train["gradient_norm"] is dev["loss"] is dev["perplexity"] is None
    assert (train["skipped"], dev["bleu"]) == (10, 12.34)
