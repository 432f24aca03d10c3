"""An ablation of some seconds, and results of it that nobody has trained for."""

from pathlib import Path
from typing import Any

from utils.experiment.ablation import Ablation, Alternative, Result, read_ablation
from utils.run import portable

SPEC = """
name: tiny
preset: const/preset/demo.yaml
options: {training.max_steps: 4, optimizer.clip_norm: null, optimizer.betas: [0.5, 0.75]}
seeds: [1, 2]
switches:
  norm:
    last: {model.norm_first: false}
  beam:
    1, greedy: {search.beam_size: 1}
    "2": {search.beam_size: 2}
  dropout:
    "0.3": {model.dropout: 0.3}
"""
COMMIT = "0123456789abcdef" * 2 + "01234567"


def tiny_ablation(folder: Path, spec: str = SPEC) -> Ablation:
    file = folder / "tiny.yaml"
    file.write_text(spec, encoding="utf-8")
    return read_ablation(file)


def result(ablation: Ablation, alternative: Alternative, seed: int, dev_bleu: float, **other: Any) -> Result:
    """As `score_run` would give it."""
    return {
        "switch": alternative.switch,
        "alternative": alternative.label,
        "seed": seed,
        "text": "embedded, ja-en",
        "dev_bleu": dev_bleu,
        "dev_chrf": 50.0,
        "test_bleu": dev_bleu + 1,
        "steps": 4,
        "target_tokens": 2_000_000,
        "minutes": 6.0,
        "parameters": 1_230_000,
        "difference": {key: list(values) for key, values in ablation.changes(alternative).items()},
        "signatures": {"BLEU": "tok:13a"},
        "versions": "torch 9",
        "trained": {"machine": "an abacus", "commit": COMMIT},
        "commit": COMMIT,
        "run": ablation.config(alternative, seed).name,
        "config": ablation.config(alternative, seed).plain(portable),
        **other,
    }
