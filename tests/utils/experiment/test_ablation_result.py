import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.tiny import TEXT, run
from tests.utils.experiment.tiny_ablation import result, tiny_ablation
from utils.config import TranslationConfig
from utils.dataset.corpus import prepare_corpus
from utils.dataset.text import read_parallel
from utils.device import pick_device
from utils.evaluation.judge import Validator
from utils.experiment.ablation import Ablation, Results, score_run
from utils.run import CONFIG, load_run

LOG = """
{"kind": "train", "step": 2, "minutes": 0.1, "tokens_per_second": 100.0}
{"kind": "dev", "step": 2, "minutes": 0.5, "bleu": 3.0}
{"kind": "train", "step": 3, "minutes": 0.6, "tokens_per_second": 300.0}
{"kind": "train", "step": 4, "minutes": 0.7, "tokens_per_second": 200.0}
{"kind": "dev", "step": 4, "minutes": 1.5, "bleu": 2.0}
"""
ENDED = {"best_step": 2, "steps": 4, "target_tokens": 600, "parameters": 99, "bleu": -1.0, "finished": "then"}


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    return tiny_ablation(tmp_path_factory.mktemp("ablation"))


@pytest.fixture
def results(ablation: Ablation, tmp_path: Path) -> Results:
    return Results(ablation, tmp_path / "results")


def put(results: Results, seed: int = 1) -> Path:
    base = results.ablation.base
    results.write(base, seed, result(results.ablation, base, seed, 30.0))
    return results.file(base, seed)


def test_what_was_written_is_found_by_its_seed(results: Results) -> None:
    assert put(results, 2).name == "base-2.json"
    assert list(results.of(results.ablation.base)) == [2]
    assert results.of(results.ablation.base)[2]["dev_bleu"] == 30.0
    assert results.of(results.ablation.alternatives[0]) == {}


def test_a_result_of_other_settings_is_not_mixed_in(results: Results, tmp_path: Path) -> None:
    file = put(results)
    found = json.loads(file.read_text())
    found["config"]["model"]["d_ff"] = 77
    file.write_text(json.dumps(found))
    for look in (lambda: results.of(results.ablation.base), lambda: results.require_same(tmp_path)):
        with pytest.raises(ValueError, match=rf"{file} is of other settings \(model\.d_ff is 77, not 512\): remove it"):
            look()


def test_a_setting_that_came_later_makes_no_result_another(results: Results, tmp_path: Path) -> None:
    file = put(results)
    found = json.loads(file.read_text())
    del found["config"]["model"]["positions"]
    file.write_text(json.dumps(found))
    results.require_same(tmp_path)
    del found["config"]["optimizer"]["clip_norm"]  # without which the base trains
    file.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=r"of other settings \(optimizer\.clip_norm is 1\.0, not None\): remove it"):
        results.require_same(tmp_path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"run": "a", ', "Expecting"),
        ("[]", "run or config is missing"),
        ('{"run": "a"}', "run or config is missing"),
        ('{"run": "a", "config": 3}', "run or config is missing"),
        ('{"config": {}}', "run or config is missing"),
    ],
)
def test_a_damaged_result_is_named(results: Results, tmp_path: Path, text: str, why: str) -> None:
    file = put(results)
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"{file} is damaged \({why}.*\): remove it"):
        results.run(results.ablation.base, 1)
    with pytest.raises(ValueError, match=rf"{file} is damaged \({why}.*\): remove it"):
        results.require_same(tmp_path)


def test_a_result_names_the_run_of_its_weights(results: Results) -> None:
    put(results)
    assert [results.run(results.ablation.base, seed) for seed in (1, 2)] == ["tiny-base-1", None]


def saved_run(root: Path, name: str, config: TranslationConfig) -> Path:
    folder = root / f"{name}-20260101-000000"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "step-00000002.pt").touch()
    config.save(folder / CONFIG)
    return folder


def test_a_run_of_other_settings_is_not_gone_on_with(results: Results, tmp_path: Path) -> None:
    training = results.ablation.trainings()[1]
    other = replace(training.config, model=replace(training.config.model, dropout=0.25))
    folder = saved_run(tmp_path, training.name, other)
    with pytest.raises(ValueError, match=rf"{folder} is of other settings \(model\.dropout is 0\.25, not 0\.1\)"):
        results.require_same(tmp_path)


def test_weights_serve_whatever_their_run_searches_by(results: Results, tmp_path: Path) -> None:
    training = results.ablation.trainings()[0]
    saved_run(tmp_path, training.name, replace(training.config, search=replace(training.config.search, beam_size=9)))
    results.require_same(tmp_path)


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Ablation, Path]:
    """A run that has ended, of a network that says whatever it was drawn to, and the ablation that it is of."""
    splits = {"": slice(None), "dev_": slice(0, 12), "test_": slice(30, 40)}
    files = {f"{split}{side}": tmp_path / f"{split}my.{side}" for split in splits for side in ("src", "tgt")}
    for name, file in files.items():
        lines = getattr(TEXT, name[-3:])[splits[name[:-3]]]
        file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    spec = f"""
name: tiny
preset: {tmp_path}/preset.yaml
seeds: [1]
switches:
  beam:
    "3": {{search.beam_size: 3, search.length_penalty: 2}}
"""
    data = ", ".join(f"{name}: {file}" for name, file in files.items())
    (tmp_path / "preset.yaml").write_text(f"data: {{{data}}}\nsearch: {{beam_size: 1, max_ratio: 1.0}}\n")
    folder = run(tmp_path / "pickles")
    (folder / "test.json").write_text(json.dumps(ENDED | {"commit": "abc", "machine": "an abacus"}))
    (folder / "log.jsonl").write_text(LOG.lstrip())
    return tiny_ablation(tmp_path, spec), folder


def test_a_result_is_what_the_weights_translate_as_the_alternative_searches(trained: tuple[Ablation, Path]) -> None:
    """By a way of its own: each text translated by the run, and scored as a training scores."""
    ablation, folder = trained
    corpus = prepare_corpus(ablation.base.config.data)
    ours, told = load_run(folder, pick_device("cpu")), set()
    for alternative in ablation.everything:
        found = score_run(folder, ablation, alternative, 1)
        for split in ("dev", "test"):
            pairs = read_parallel(getattr(corpus, split))
            expected = Validator(partial(ours.translator, alternative.config.search), pairs, corpus, 0)(1.0)
            assert found[f"{split}_bleu"] == expected.scores["bleu"]
            assert found[f"{split}_chrf"] == expected.scores["chrf"]
            assert found["signatures"]["BLEU"] == expected.signatures["bleu"]
            told.add(expected.scores["chrf"])
    assert len(told) == 4  # no two are alike, so that none could be taken for another


def test_a_result_tells_of_its_training_and_of_what_is_different(trained: tuple[Ablation, Path]) -> None:
    ablation, folder = trained
    found = score_run(folder, ablation, ablation.alternatives[0], 1)
    assert json.loads(json.dumps(found)) == found
    named = ("ablation", "switch", "alternative", "seed", "text", "run")
    assert [found[name] for name in named] == ["tiny", "beam", "3", 1, "files, ja-en", folder.name]
    assert found["difference"] == {"search.beam_size": [1, 3], "search.length_penalty": [0.6, 2.0]}
    assert found["options"] == {"search.beam_size": 3, "search.length_penalty": 2}
    assert found["config"]["search"]["beam_size"] == 3
    assert (found["steps"], found["best_step"], found["target_tokens"], found["parameters"]) == (4, 2, 600, 99)
    assert (found["minutes"], found["target_tokens_per_s"]) == (1.5, 200.0)
    assert found["trained"] == {"finished": "then", "commit": "abc", "machine": "an abacus"}
    assert {"commit", "machine", "versions", "finished"} <= set(found)
