"""The speed of another toolkit is read correctly from its log."""

import itertools
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bench import train as module
from bench.train import (
    EOLE,
    JOEYNMT,
    MODEL,
    PEER_WARM_UP,
    PEERS,
    SMOOTHING,
    mean_rate,
    python_of,
    train_peer,
    write_texts,
)
from utils.dataset.text import ParallelText

JOEYNMT_LINE = (
    "2026-11-21 14:24:32,243 - INFO - joeynmt.training - Epoch   1, Step:        2, Batch Loss:     7.019954, "
    "Batch Acc: 0.042743, Tokens per Sec:     1174, Lr: 0.000002"
)
EOLE_LINE = (
    "[2026-11-21 14:25:43,339 INFO] Step  2/1000000; acc: 0.0; ppl: 6376.25; xent: 8.76; aux: 0.000; mtp: 0.000; "
    "attn_ent: 2.562; lr: 3.95e-06; sents:     444; bsz: 3236/2592/222; 262/1210 tok/s;     25 sec;"
)

# a toolkit that logs ever higher speeds
TALKING = """
import itertools, sys
print("hello", flush=True)
for n in itertools.count():
    sys.stderr.write(f"Tokens per Sec: {n}, {sys.argv[1:]}\\n")
    sys.stderr.flush()
"""


def test_a_line_of_each_log_gives_target_tokens_a_second() -> None:
    lines = [JOEYNMT_LINE, EOLE_LINE]
    found = [list(module._rates(lines, peer.rate, deque())) for peer in (JOEYNMT, EOLE)]
    assert found == [[1174.0], [1210.0]]


def test_rates_count_for_as_long_as_they_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def rates() -> Iterator[float]:
        for seconds, rate in [*[(100.0, 1e9)] * PEER_WARM_UP, (3.0, 10.0), (1.0, 50.0), (5.0, 1e9)]:
            clock[0] += seconds
            yield rate

    assert mean_rate(rates(), 0, 4) == pytest.approx((3 * 10 + 1 * 50) / 4)
    clock[0] = 0.0
    assert mean_rate(rates(), 203, 1) == pytest.approx(50)  # seconds after the first line, at 100


def test_both_settings_ask_for_the_work_that_ours_does() -> None:
    joeynmt, eole = (yaml.safe_load((module.SETTINGS / f"{p.name}.yaml").read_text()) for p in (JOEYNMT, EOLE))
    for stack, depth in (("encoder", MODEL.n_encoder_layers), ("decoder", MODEL.n_decoder_layers)):
        asked = joeynmt["model"][stack]
        assert (asked["num_layers"], asked["num_heads"], asked["hidden_size"], asked["ff_size"]) == (
            depth,
            MODEL.n_heads,
            MODEL.d_model,
            MODEL.d_ff,
        )
        assert asked["dropout"] == asked["embeddings"]["dropout"] == MODEL.dropout
        assert eole["model"]["layers"] == depth
    m = eole["model"]
    assert (m["heads"], m["hidden_size"], m["transformer_ff"]) == (MODEL.n_heads, MODEL.d_model, MODEL.d_ff)
    assert eole["training"]["dropout"] == [MODEL.dropout]
    assert eole["training"]["attention_dropout"] == [MODEL.attention_dropout]
    assert joeynmt["training"]["label_smoothing"] == eole["training"]["label_smoothing"] == SMOOTHING


def test_texts_settings_and_budget_lie_in_one_folder(tmp_path: Path) -> None:
    write_texts(ParallelText(["a b"], ["c"]), ParallelText(["d"], ["e f"]), ["a", "b"], tmp_path, 99)
    assert (tmp_path / "train.src").read_text() == "a b\n"
    assert (tmp_path / "dev.tgt").read_text() == "e f\n"
    assert (tmp_path / "pieces.txt").read_text() == "a\nb\n"
    for peer in PEERS:
        settings = yaml.safe_load((tmp_path / f"{peer.name}.yaml").read_text())
        assert settings["training"]["batch_size"] == 99


def test_a_peer_is_stopped_when_enough_was_seen(tmp_path: Path) -> None:
    (tmp_path / "joeynmt").mkdir()  # results of an earlier round block some toolkits
    peer = replace(JOEYNMT, arguments=("-c", TALKING, "x"))
    rate, peak = train_peer(peer, Path(sys.executable), tmp_path, threads=1, warm_up=0.1, seconds=0.3)
    assert rate > PEER_WARM_UP
    assert peak > 1
    assert not (tmp_path / "joeynmt").exists()


def test_a_peer_that_fails_says_its_last_words(tmp_path: Path) -> None:
    peer = replace(EOLE, arguments=("-c", "print('no such option'); raise SystemExit(1)"))
    with pytest.raises(ValueError, match=r"^Eole ended after 0 of 5 seconds; its last lines: no such option$"):
        train_peer(peer, Path(sys.executable), tmp_path, threads=1, warm_up=0, seconds=5)


def test_an_environment_without_the_peer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--eole .*: not a virtual environment; bench/README.md"):
        python_of(EOLE, tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    with pytest.raises(ValueError, match=r"JoeyNMT is not installed in it"):
        python_of(JOEYNMT, tmp_path)
    assert python_of(replace(JOEYNMT, name="json"), tmp_path) == tmp_path / "bin" / "python"


def test_rates_that_end_early_are_no_measurement() -> None:
    with pytest.raises(ValueError, match="ended after 0 of 5 seconds"):
        mean_rate(itertools.repeat(1.0, 10), 0, 5)
