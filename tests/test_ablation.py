"""study.py with `switches`: what is compared with what, trained and scored once, and claimed beyond what seeds do."""

import json
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import study as command
from const.path import FIGURE, ROOT
from tests.fake_training import World, raising
from tests.outcome import outcome
from tests.strict import no_warning
from tests.tiny import TEXT as TINY_TEXT
from tests.tiny import run as tiny_run
from utils.arguments import read_arguments
from utils.dataset.corpus import prepare_corpus
from utils.dataset.text import read_parallel
from utils.device import pick_device
from utils.evaluation.judge import Validator
from utils.experiment import ablation as ablation_module
from utils.experiment.ablation import (
    Ablation,
    AblationConfig,
    Alternative,
    Result,
    Spread,
    Training,
    claimed,
    differences,
    margin,
    page,
    pooled,
    score_run,
)
from utils.run import CONFIG, load_run, portable

pytestmark = no_warning
TEXT = """
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
NAMES = [f"tiny-{slug}-{seed}" for seed in (1, 2) for slug in ("base", "norm-last", "dropout-0.3")]
# dev BLEU by seed; around their means, what was trained varies by 2 (0.2² + 0.1² + 0.3²) with three degrees of freedom
SCORES = {
    "base": (30.2, 29.8),
    "norm-last": (28.1, 27.9),
    "dropout-0.3": (31.2, 31.8),
    "beam-1-greedy": (29.7, 29.1),
    "beam-2": (30.7, 30.3),
}
MARGIN = 3.18 * (0.28 / 3) ** 0.5


def load(folder: Path, text: str = TEXT) -> AblationConfig:
    (folder / "tiny.yaml").write_text(text, encoding="utf-8")
    config = command.load(folder / "tiny.yaml")
    assert isinstance(config, AblationConfig)
    return config


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> AblationConfig:
    return load(tmp_path_factory.mktemp("ablation"))


@pytest.fixture
def ablation(config: AblationConfig, tmp_path: Path) -> Ablation:
    return Ablation(config, tmp_path / "figure" / "ablation" / "tiny", tmp_path / "pickles")


def result(ablation: Ablation, alternative: Alternative, seed: int, dev_bleu: float, run: str = "a-run") -> Result:
    """As `score_run` would give it."""
    config = alternative.config
    changed = differences(ablation.base.config, config)
    return {
        "text": "embedded, ja-en",
        "dev_bleu": dev_bleu,
        "dev_chrf": 50.0,
        "test_bleu": dev_bleu + 1,
        "steps": 4,
        "target_tokens": 2_000_000,
        "minutes": 6.0,
        "parameters": 1_230_000,
        "difference": {key: list(values) for key, values in changed.items()},
        "signatures": {"BLEU": "tok:13a"},
        "versions": "torch 9",
        "trained": {"machine": "an abacus", "commit": "0123"},
        "commit": "4567",
        "run": run,
        "config": replace(config, training=replace(config.training, seed=seed)).plain(portable),
    }


def write(ablation: Ablation, scores: Mapping[str, tuple[float, ...]]) -> Ablation:
    ablation.folder.mkdir(parents=True, exist_ok=True)
    for alternative in ablation.alternatives:
        for seed, dev_bleu in enumerate(scores.get(alternative.slug, ()), 1):
            found = result(ablation, alternative, seed, dev_bleu)
            ablation.file(alternative, seed).write_text(json.dumps(found))
    return ablation


# The file.


def test_each_alternative_changes_what_it_says_and_all_that_has_weights_is_trained(ablation: Ablation) -> None:
    """A beam has none: it translates with the base's. The first seed of everything comes first."""
    base = ablation.base.config
    assert {str(one): differences(base, one.config) for one in ablation.alternatives} == {
        "base": {},
        "norm last": {"model.norm_first": (True, False)},
        "beam 1, greedy": {"search.beam_size": (4, 1)},
        "beam 2": {"search.beam_size": (4, 2)},
        "dropout 0.3": {"model.dropout": (0.1, 0.3)},
    }
    trainings = ablation.trainings()
    assert [training.name for training in trainings] == NAMES
    shared = [["base", "beam 1, greedy", "beam 2"], ["norm last"], ["dropout 0.3"]]
    assert [[str(one) for one in training.translating] for training in trainings] == 2 * shared
    assert ablation.settings(trainings[3], ablation.alternatives[2]).search.beam_size == 1
    assert base.optimizer.clip_norm is None
    assert base.optimizer.betas == (0.5, 0.75)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("norm_first", "norm_frist", r"norm last: unknown option model\.norm_frist=false: did you mean"),
        ("0.3}", "much}", r"dropout 0\.3: .*model\.dropout.*much"),
        ("search.beam_size: 2", "search.beam_size: 4", "beam 2 does not differ from the base"),
        ("search.beam_size: 2", "training.seed: 2", r"beam 2: training\.seed .*give seeds"),
        ("model.dropout: 0.3", "name: mine", r"dropout 0\.3: name is not a setting"),
        ('dropout:\n    "0.3":', "脱落:\n    多め:", "脱落 多め has the same short name as another, or none"),
        ('"2"', "1 (greedy)", r"beam 1 \(greedy\) has the same short name"),
        ("max_steps", "max_step", r"base: unknown option training\.max_step=4"),
        ("seeds:", "seed:", "unknown key seed: did you mean seeds"),
        ("[1, 2]", "[1, 1]", "give each seed once"),
        ("[1, 2]", "[]", "give each seed once"),
        ("[1, 2]", "", "seeds"),
        ("[1, 2]", "[1, -2]", "give each seed once, 0 or more"),
        ("name: tiny", "name: ../tiny", r"name=\.\./tiny"),
        ("demo", "bert_ja", r"base: unknown option|base: .*masked_language"),
        ("last: {model.norm_first: false}", "last:", "switches"),
    ],
)
def test_a_mistake_is_a_line_before_anything_is_trained(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=rf"tiny\.yaml: .*{complaint}") as caught:
        load(tmp_path, TEXT.replace(old, new, 1))
    assert "\n" not in str(caught.value)


# Training and scoring.


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Trainings that take no time, scored while they are held."""
    found = World(steps=(1,))

    def score(run: Path, ablation: Ablation, training: Training, alternative: Alternative) -> Result:
        assert training.name in found.held
        return result(ablation, alternative, training.seed, 30.0, run.name)

    monkeypatch.setattr(ablation_module, "TrainingProcess", found.training)
    monkeypatch.setattr(ablation_module, "score_run", score)
    return found


def files(ablation: Ablation) -> dict[str, str]:
    """Names of the results, and whose weights they are of."""
    return {file.stem: json.loads(file.read_text())["run"] for file in sorted(ablation.folder.glob("*"))}


def test_everything_is_trained_once_as_train_reads_it(ablation: Ablation, world: World) -> None:
    ablation.train()
    assert list(world.options) == NAMES
    assert len(files(ablation)) == 2 * 5
    assert files(ablation)["beam-2-2"] == "tiny-base-2"
    for training in ablation.trainings():
        (given,) = world.options[training.name]
        options = [f"--{key}={value}" for key, value in given.items()]
        found = read_arguments(["--config", "demo", *options, "--name", training.name]).config
        assert found == ablation.settings(training, training.translating[0])
    ablation.train()
    assert sum(map(len, world.options.values())) == len(NAMES)


def test_what_is_missing_is_made_with_the_weights_of_one_run(ablation: Ablation, world: World) -> None:
    """Where the base's run was lost, it is trained again, and all that translates with it is scored again."""
    ablation.train()
    world.options.clear()
    (ablation.folder / "beam-2-2.json").unlink()
    (ablation.folder / "norm-last-1.json").unlink()
    world.stamp = "-again"
    ablation.train()
    assert list(world.options) == ["tiny-norm-last-1", "tiny-base-2"]
    again = [name for name, run in files(ablation).items() if run.endswith("-again")]
    assert again == ["base-2", "beam-1-greedy-2", "beam-2-2", "norm-last-1"]
    world.stamp = ""  # as if the process had been killed between two of these
    found = result(ablation, ablation.alternatives[3], 2, 30.0, "tiny-base-2")
    ablation.file(ablation.alternatives[3], 2).write_text(json.dumps(found))
    ablation.train()
    assert {run for name, run in files(ablation).items() if "-2" in name[-2:] and "b" in name[0]} == {"tiny-base-2"}


def test_what_others_are_training_is_waited_for(
    ablation: Ablation, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One other process drops its training, another finishes what is then only left."""
    looks: list[int] = []

    def sleep(_: float) -> None:
        looks.append(len(world.options))
        if len(looks) == 2:
            write(ablation, dict.fromkeys(("base", "beam-1-greedy", "beam-2"), (30.0,)))
            world.held.clear()

    world.held = {"tiny-base-1", "tiny-norm-last-1"}
    world.events["tiny-dropout-0.3-1", 1] = lambda: world.held.remove("tiny-norm-last-1")
    monkeypatch.setattr(time, "sleep", sleep)
    ablation.train()
    assert looks == [5, 5]
    assert set(world.options) == set(NAMES)
    assert len(files(ablation)) == 2 * 5
    assert files(ablation)["base-1"] == "a-run"
    assert "tiny-base-1" not in world.saved


@pytest.mark.parametrize("error", [ValueError("no gradient"), OSError(28, "No space"), RuntimeError("no\n memory")])
def test_a_failure_is_told_and_the_others_are_trained(ablation: Ablation, world: World, error: Exception) -> None:
    world.events["tiny-norm-last-1", 1] = raising(error)
    with pytest.raises(ValueError, match=r"1 of 6 trainings failed: tiny-norm-last-1: .*n?o") as caught:
        ablation.train()
    assert "\n" not in str(caught.value)
    assert len(files(ablation)) == 2 * 5 - 1


def test_who_stops_it_begins_no_other_training(ablation: Ablation, world: World) -> None:
    world.events["tiny-norm-last-1", 1] = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        ablation.train()
    assert list(world.options) == NAMES[:2]
    assert sorted(files(ablation)) == ["base-1", "beam-1-greedy-1", "beam-2-1"]
    assert not world.held


def test_results_and_runs_of_other_settings_are_refused(ablation: Ablation, world: World, tmp_path: Path) -> None:
    """Settings that a result does not know had their defaults then; a run may search otherwise."""
    write(ablation, SCORES)
    file = ablation.file(ablation.base, 1)
    found = json.loads(file.read_text())
    del found["config"]["model"]["positions"]
    file.write_text(json.dumps(found))
    ablation.train()
    found["config"]["model"]["d_ff"] = 77
    for text, complaint in (
        (json.dumps(found), r"of other settings \(model\.d_ff is 77, not 512\): remove it"),
        ('{"run": "a", ', "is damaged"),
        ("[]", "is damaged"),
        ('{"run": "a", "config": 3}', "is damaged"),
    ):
        file.write_text(text)
        for look in (ablation.train, ablation.rows):
            with pytest.raises(ValueError, match=rf"base-1\.json (is )?{complaint}|base-1\.json is {complaint}"):
                look()
    file.unlink()
    run = tmp_path / "pickles" / "tiny-base-1-20260101-000000"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "step-00000002.pt").touch()
    wanted = ablation.settings(ablation.trainings()[0], ablation.base)
    replace(wanted, model=replace(wanted.model, dropout=0.25)).save(run / CONFIG)
    with pytest.raises(ValueError, match=rf"{run} is of other settings \(model\.dropout is 0\.25, not 0\.1\)"):
        ablation.train()
    replace(wanted, search=replace(wanted.search, beam_size=9)).save(run / CONFIG)
    ablation.train()
    assert list(world.options) == ["tiny-base-1"]


def test_a_result_is_what_the_weights_translate_as_the_alternative_searches(tmp_path: Path) -> None:
    """By a way of its own: each text translated by the run, and scored as a training scores."""
    splits = {"": slice(None), "dev_": slice(0, 12), "test_": slice(30, 40)}
    texts = {f"{split}{side}": tmp_path / f"{split}my.{side}" for split in splits for side in ("src", "tgt")}
    for name, file in texts.items():
        lines = getattr(TINY_TEXT, name[-3:])[splits[name[:-3]]]
        file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    data = ", ".join(f"{name}: {file}" for name, file in texts.items())
    (tmp_path / "preset.yaml").write_text(f"data: {{{data}}}\nsearch: {{beam_size: 1, max_ratio: 1.0}}\n")
    switches = 'switches: {beam: {"3": {search.beam_size: 3, search.length_penalty: 2}}}'
    config = load(tmp_path, f"name: tiny\npreset: {tmp_path}/preset.yaml\nseeds: [1]\n{switches}")
    folder = tiny_run(tmp_path / "pickles")
    (folder / "test.json").write_text(
        '{"best_step": 2, "steps": 4, "target_tokens": 600, "parameters": 99, "finished": "then", "commit": "abc", '
        '"machine": "an abacus"}'
    )
    (folder / "log.jsonl").write_text(
        '{"kind": "train", "step": 2, "minutes": 0.1, "tokens_per_second": 100.0}\n'
        '{"kind": "dev", "step": 2, "minutes": 1.5}\n'
    )
    ablation = Ablation(config, tmp_path / "results")
    (training,) = ablation.trainings()
    corpus, ours = prepare_corpus(ablation.base.config.data), load_run(folder, pick_device("cpu"))
    scores = set()
    for alternative in ablation.alternatives:
        found = score_run(folder, ablation, training, alternative)
        assert json.loads(json.dumps(found)) == found
        for split in ("dev", "test"):
            pairs = read_parallel(getattr(corpus, split))
            expected = Validator(partial(ours.translator, alternative.config.search), pairs, corpus, 0)(1.0)
            assert found[f"{split}_bleu"] == expected.scores["bleu"]
            assert found[f"{split}_chrf"] == expected.scores["chrf"]
            assert found["signatures"]["BLEU"] == expected.signatures["bleu"]
            scores.add(expected.scores["chrf"])
    assert len(scores) == 4  # no two are alike, so that none could be taken for another
    assert found["difference"] == {"search.beam_size": [1, 3], "search.length_penalty": [0.6, 2.0]}
    assert (found["text"], found["run"], found["config"]["search"]["beam_size"]) == ("files, ja-en", folder.name, 3)
    assert (found["steps"], found["minutes"], found["target_tokens_per_s"]) == (4, 1.5, 100.0)
    assert found["trained"]["commit"] == "abc"


# Claims, the table and the picture.


def error_rate(t: float, freedom: int) -> float:
    """P(|t| > t) for Student's density, summed over small steps of its angle."""
    angles = np.linspace(0, math.pi / 2, 200_001)  # t = √ν tan, which turns the density into a power of the cosine
    density = np.cos(angles) ** (freedom - 1)
    return float(density[angles > math.atan(t / math.sqrt(freedom))].sum() / density.sum())


@pytest.mark.parametrize("freedom", [*range(1, 11), 20, 30, 60, 120])
def test_no_difference_is_claimed_for_one_in_twenty(freedom: int) -> None:
    assert error_rate(claimed(freedom), freedom) == pytest.approx(0.05, abs=0.0005)
    assert claimed(freedom) <= claimed(freedom - 1 or 1)


def test_the_spread_is_pooled_around_each_mean() -> None:
    """By hand: squares 1 + 1, 4 + 4 and 0 + 1 + 1, of 7 values around 3 means."""
    spread = pooled([[10.0, 12.0], [20.0, 24.0], [30.0, 29.0, 31.0]])
    assert spread == Spread(pytest.approx(math.sqrt(12 / 4)), 4)  # type: ignore[arg-type]
    assert pooled([[1.0, 1.0], [100.0, 100.0]]) == Spread(0.0, 2)
    assert pooled([[1.0], [5.0], []]) is None
    assert margin(Spread(0.6, 9), 2, 4) == pytest.approx(2.26 * 0.6 * math.sqrt(1 / 2 + 1 / 4))
    assert margin(None, 2, 4) is None
    assert claimed(19) == claimed(10)


def test_differences_are_claimed_beyond_the_margin(ablation: Ablation) -> None:
    rows = {row.alternative.slug: row for row in write(ablation, SCORES).rows()}
    assert {slug: row.verdict for slug, row in rows.items()} == {
        "base": "no difference seen",
        "norm-last": "worse",
        "beam-1-greedy": "no difference seen",
        "beam-2": "no difference seen",
        "dropout-0.3": "better",
    }
    assert all(row.margin == pytest.approx(MARGIN) for row in rows.values())
    assert rows["beam-1-greedy"].difference == pytest.approx(-0.6)


def test_one_seed_claims_nothing_and_what_is_missing_is_named(ablation: Ablation) -> None:
    with pytest.raises(ValueError, match="no result of the base"):
        write(ablation, {"norm-last": (1.0,)}).rows()
    rows = write(ablation, {"base": (30.0,), "norm-last": (28.0,)}).rows()
    assert [row.verdict for row in rows] == ["unknown", "unknown"]
    text = page(ablation, rows, "", "")
    assert "Without a result: beam 1, greedy, beam 2, dropout 0.3." in text
    assert "| **28.00** | -2.00 | unknown |" in text


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    monkeypatch.setattr(sys, "argv", ["study.py", *map(str, arguments)])
    monkeypatch.setattr(command, "stop_as_by_ctrl_c", lambda: None)
    return outcome("study.py", command.main, capsys)


def test_the_command_writes_a_table_a_picture_and_the_same_again(
    ablation: Ablation,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(ablation, SCORES)
    load(tmp_path)
    here = (tmp_path / "tiny.yaml", "--folder", tmp_path / "figure")
    assert "--best" in run(monkeypatch, capsys, *here, "--best", tmp_path / "b").complaint
    table, picture = (tmp_path / "figure" / f"ablation_tiny.{kind}" for kind in ("md", "png"))
    made = []
    for arguments in ((), ("--report", "--json", tmp_path / "rows.json")):
        ended = run(monkeypatch, capsys, *here, *arguments)
        assert (ended.status, ended.out.splitlines()) == (0, [str(table), str(picture)])
        made.append((table.read_text(encoding="utf-8"), picture.read_bytes()))
    assert made[0] == made[1]
    assert not world.options
    assert Image.open(picture).width <= 1400
    (line,) = (line for line in made[0][0].splitlines() if "| last |" in line)
    assert line == (
        "| norm | last | `model.norm_first` true → false | **28.00 ± 0.14** | -2.00 (± 0.97) | worse | 29.00 ± 0.14 | "
        "50.00 ± 0.00 | 1.23 M | 6.0 |"
    )
    for fact in (
        "`optimizer.clip_norm` null",
        "](ablation_tiny.png)",
        "an abacus",
        "`0123`; `4567`",
        "tiny.yaml --report",
    ):
        assert fact in made[0][0]
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["verdict"] for row in rows][:2] == [None, "worse"]


@pytest.mark.parametrize("file", sorted((ROOT / "const" / "study").glob("ablation_*.yaml")), ids=lambda file: file.stem)
def test_the_page_of_the_repository_is_what_its_results_say(file: Path) -> None:
    config = command.load(file)
    assert isinstance(config, AblationConfig)
    assert file.stem == f"ablation_{config.name}"
    ablation = Ablation(config, FIGURE / "ablation" / config.name)
    text = page(ablation, ablation.rows(), f"python study.py const/study/{file.name} --report", f"{file.stem}.png")
    assert (FIGURE / f"{file.stem}.md").read_text(encoding="utf-8") == text
