"""The command, once with a very short real training; the handling of many is tested beside the code of each part."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from bench import ablation
from bench.faults import TinyTraining
from tests.outcome import outcome
from tests.utils.experiment.tiny_ablation import SPEC, result, tiny_ablation
from utils.experiment.ablation import Results, Work

SETTINGS = """
tokenizer: {kind: bpe, vocab_size: 48, joint: false}
model: {d_model: 16, n_heads: 2, d_ff: 32, n_encoder_layers: 1, n_decoder_layers: 1, max_length: 40, tie: target}
batch: {tokens_per_batch: 200, max_tokens: 40}
optimizer: {peak_lr: 0.03, warmup_steps: 5}
training: {max_steps: 12, validate_every: 6, report_every: 2, precision: fp32, device: cpu, select_by: loss}
search: {beam_size: 2, max_ratio: 1.0}
"""
PARTS = {"": "my", "dev_": "dev", "test_": "test"}


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.ablation", *arguments])
    ablation.main()


def test_it_trains_scores_writes_and_draws_and_makes_the_same_again_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base is trained and also translates with another search; test scores match those of its training."""
    tiny = TinyTraining(tmp_path / "text", SETTINGS)
    for side in ("ja", "en"):
        lines = (tiny.folder / f"my.{side}").read_text(encoding="utf-8").splitlines(keepends=True)
        (tiny.folder / f"dev.{side}").write_text("".join(lines[:8]), encoding="utf-8")
        (tiny.folder / f"test.{side}").write_text("".join(lines[40:48]), encoding="utf-8")
    options = {f"data.{part}src": str(tiny.folder / f"{name}.ja") for part, name in PARTS.items()}
    options |= {f"data.{part}tgt": str(tiny.folder / f"{name}.en") for part, name in PARTS.items()}
    spec = f"""
name: blink
preset: {tiny.folder}/faults.yaml
options: {json.dumps(options)}
seeds: [3]
switches:
  beam:
    greedy: {{search.beam_size: 1}}
"""
    (tmp_path / "blink.yaml").write_text(spec, encoding="utf-8")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MIYAKO_CORPUS", str(tmp_path / "corpus"))
    pickles, folder = tmp_path / "pickles", tmp_path / "figure"
    monkeypatch.setattr(ablation, "Work", lambda results: Work(results, pickles))
    arguments = (str(tmp_path / "blink.yaml"), "--folder", str(folder))
    run(*arguments, "--json", str(tmp_path / "all.json"), monkeypatch=monkeypatch)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "alternatives=1 missing=0 better=0 worse=0 no_difference_seen=0"
    assert json.loads((tmp_path / "all.json").read_text())["figures"]["alternatives"] == 1
    base, greedy = (json.loads((folder / f"ablation/blink/{s}-3.json").read_text()) for s in ("base", "beam-greedy"))
    (trained,) = pickles.glob("blink-base-3-*/test.json")
    ended = json.loads(trained.read_text())
    assert (base["test_bleu"], base["test_chrf"]) == (ended["bleu"], ended["chrf"])
    assert base["run"] == greedy["run"] == trained.parent.name
    assert base["config"] == ended["config"]
    made = {name: (folder / f"ablation_blink.{name}").read_bytes() for name in ("md", "png")}
    shutil.rmtree(pickles)
    for name in made:
        (folder / f"ablation_blink.{name}").unlink()
    run(*arguments, "--table", monkeypatch=monkeypatch)
    assert {name: (folder / f"ablation_blink.{name}").read_bytes() for name in made} == made
    assert not pickles.exists()


def test_the_last_line_counts_the_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = tiny_ablation(tmp_path)
    results = Results(tiny, tmp_path / "figure" / "ablation" / "tiny")
    scores = {"base": (30.0, 30.5), "norm-last": (20.0, 20.5), "dropout-0.3": (30.25, 30.75)}
    for alternative in tiny.everything:
        for seed, dev_bleu in enumerate(scores.get(alternative.slug, ()), 1):
            results.write(alternative, seed, result(tiny, alternative, seed, dev_bleu))
    run(str(tiny.file), "--table", "--folder", str(tmp_path / "figure"), monkeypatch=monkeypatch)
    *_, table, picture, blank, last = capsys.readouterr().out.splitlines()
    assert last == "alternatives=2 missing=2 better=0 worse=1 no_difference_seen=1 seed_deviation=0.354"
    assert Path(table).is_file()
    assert Path(picture).is_file()
    assert not blank


def test_a_mistake_in_the_file_is_one_line_and_nothing_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(SPEC.replace("norm_first", "norm_frist"), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["bench.ablation", str(file), "--folder", str(tmp_path / "figure")])
    found = outcome("ablation.py", ablation.main, capsys)
    assert "norm last: unknown option model.norm_frist=false: did you mean --model.norm_first?" in found.complaint
    assert not (tmp_path / "figure").exists()
