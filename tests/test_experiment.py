"""study.py: what a file may say, what is trained, given up, resumed and shared, and what is claimed of the scores."""

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
import yaml

import study as command
from const.path import FIGURE, ROOT
from tests.tiny import TEXT as TINY_TEXT
from tests.tiny import Outcome, no_warning, outcome
from tests.tiny import run as tiny_run
from utils.arguments import read_arguments
from utils.command import INTERRUPTED
from utils.config import TranslationConfig
from utils.dataset.corpus import prepare_corpus
from utils.dataset.text import read_parallel
from utils.device import pick_device
from utils.evaluation.metric import corpus_metrics, measure
from utils.experiment.ablation import Ablation, Alternative, Result, Training, draw, margin, page, score_run
from utils.experiment.study import Domain, Study
from utils.experiment.trial import training_process
from utils.file import BusyError, read_json, write_json, write_lines
from utils.load import load_run
from utils.provenance import portable
from utils.run import CONFIG
from utils.training.report import LOG

pytestmark = no_warning
SEARCH = """
name: tiny
preset: const/preset/demo.yaml
options: {training.max_steps: 30, optimizer.warmup_steps: 1}
space:
  optimizer.peak_lr: {low: 1e-3, high: 0.1, log: true}
  model.d_ff: {choices: [16, 32]}
sampler: {startup_trials: 3}
pruner: none
score: bleu
seed: 1
"""
SWITCHES = """
name: tiny
preset: const/preset/demo.yaml
options: {training.max_steps: 4, optimizer.warmup_steps: 1, optimizer.clip_norm: null, optimizer.betas: [0.5, 0.75]}
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
MEDIAN = ("pruner: none", "pruner: {startup_trials: 2, warmup_steps: 20}")
STUDIES = sorted((ROOT / "const" / "study").glob("*.yaml"))


class KilledError(BaseException):
    """The process is gone, and could do nothing about it."""


class World:
    """Trainings that take no time: what outlives a process, that is how far each has come, and who holds it."""

    def __init__(self, score: Callable[[int, int, float], float | None] = lambda _, step, __: step) -> None:
        self.score, self.field, self.steps = score, "bleu", (10, 20, 30)
        self.saved: dict[str, list[dict[str, Any]]] = {}  # validations by name
        self.options: dict[str, list[dict[str, str]]] = {}  # of each time that it was begun or resumed
        self.held: set[str] = set()
        self.stopped: list[str] = []
        self.events: dict[tuple[str, int], Callable[[], object]] = {}  # happen once, before this validation

    @contextmanager
    def training(self, name: str, options: Sequence[str], folder: Path, root: Path) -> Iterator[SimpleNamespace]:
        if name in self.held:
            raise BusyError(name)
        given = dict(option.removeprefix("--").split("=") for option in options[2:])
        self.options.setdefault(name, []).append(given)
        self.held.add(name)
        try:
            validations, stop = partial(self.validations, name), partial(self.stopped.append, name)
            yield SimpleNamespace(validations=validations, stop=stop, run=root / name, output=folder / name)
        finally:
            self.held.remove(name)

    def validations(self, name: str) -> Iterator[dict[str, Any]]:
        log, rate = self.saved.setdefault(name, []), float(self.options[name][0].get("optimizer.peak_lr", 0))
        yield from list(log)
        for step in self.steps[len(log) :]:
            assert name not in self.stopped
            self.events.pop((name, step), int)()
            score = self.score(int(name.rpartition("-")[2]), step, rate)
            log.append({"step": step, "minutes": step / 10, self.field: score})
            yield log[-1]


def raising(error: BaseException) -> Callable[[], None]:
    def happen() -> None:
        raise error

    return happen


def load(folder: Path, text: str, *changes: tuple[str, str]) -> Any:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (folder / "tiny.yaml").write_text(text, encoding="utf-8")
    return command.load(folder / "tiny.yaml")


# The file.


def test_the_studies_of_the_project_and_of_the_guide_are_understood(tmp_path: Path) -> None:
    for path in STUDIES:
        command.load(path)
    guide = (ROOT / "docs" / "nlp100.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", guide, re.S | re.M)
    assert load(tmp_path, text).space["optimizer.peak_lr"] == Domain(0.0005, 0.005, log=True)


SIZES = "tokenizer.vocab_size: {choices: [300, 400]}"
RATE = "low: 1e-3, high: 0.1, log: true"
AVERAGED = (
    "name: x\npreset: const/preset/bert_ja.yaml\noptions: {checkpoint.average_last: 2}\nseeds: [1]\n"
    "switches: {dropout: {none: {model.dropout: 0.0}}}\n"
)
MISTAKES = [
    (SEARCH, "name: tiny", "nam: tiny", "line 2: unknown setting nam: did you mean name"),
    (SEARCH, "training.max_steps: 30", "name: other", "name is not a setting"),
    (SEARCH, "model.d_ff:", "training.select_by:", r"training\.select_by .*give score"),
    (SEARCH, RATE, "low: -1.0, high: 0.01", r"peak_lr=-1"),
    (SEARCH, "low: 1e-3, ", "", r"space\.optimizer\.peak_lr: .*low"),
    (SEARCH, "{choices:", "{low: 1, choices:", "low and high, or"),
    (SEARCH, "space:", "space: {}\nspices:", "either a space, or switches"),
    # a loss is per token, and a pruner compares after equally many updates
    (SEARCH.replace("score: bleu", "score: loss"), "model.d_ff: {choices: [16, 32]}", SIZES, "give score: bleu"),
    (SEARCH.replace(*MEDIAN), "model.d_ff:", "batch.accumulate:", "give pruner: none"),
    (SWITCHES, "norm_first", "norm_frist", r"norm last: .*did you mean model\.norm_first"),
    (SWITCHES, "search.beam_size: 2", "search.beam_size: 4", "beam 2 does not differ"),
    (SWITCHES, "search.beam_size: 2", "training.seed: 2", r"beam 2: training\.seed .*give seeds"),
    (SWITCHES, 'dropout:\n    "0.3":', "脱落:\n    多め:", "脱落 多め has the same short name"),
    (SWITCHES, '"2"', "1 (greedy)", r"beam 1.* has the same short name"),
    (SWITCHES, "[1, 2]", "[1, 1]", "each seed once"),
    (SWITCHES, "demo", "bert_ja", "norm last: unknown setting model.norm_first"),
    (AVERAGED, "", "", "base: scores on dev are those before averaging: give checkpoint.average_last: 0"),
    (SWITCHES, "demo", "transformer_xl_en", "base: .* is of task language: an ablation compares BLEU or accuracy"),
]


@pytest.mark.parametrize(("text", "old", "new", "message"), MISTAKES)
def test_a_mistake_is_a_line_before_anything_is_trained(
    tmp_path: Path, text: str, old: str, new: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path, text, (old, new))
    assert str(caught.value).startswith(str(tmp_path / "tiny.yaml"))
    assert str(caught.value).count("tiny.yaml") == 1


def test_values_are_drawn_as_they_are_meant() -> None:
    def drawn(**given: Any) -> list[Any]:
        sampled = optuna.create_study(sampler=optuna.samplers.RandomSampler(1))
        return [sampled.ask({"x": Domain(**given).distribution}).params["x"] for _ in range(60)]

    assert set(drawn(low=2, high=6, step=2)) == {2, 4, 6}
    assert {round(value, 9) for value in drawn(low=0.1, high=0.4, step=0.1)} == {0.1, 0.2, 0.3, 0.4}
    assert any(value % 1 for value in drawn(low=2.0, high=5))
    assert 15 < sum(value < 1e-3 for value in drawn(low=1e-4, high=1e-2, log=True)) < 45


# A search.


Start = Callable[..., Study]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start or resume the study in a world of trainings that take no time, and search for so many trials."""

    def started(world: World, n_trials: int, *changes: tuple[str, str], root: str = "pickles") -> Study:
        monkeypatch.setattr("utils.experiment.study.training_process", world.training)
        study = Study(load(tmp_path, SEARCH, *changes), tmp_path / root)
        study.search(n_trials)
        return study

    return started


def told(study: Study) -> list[tuple[Any, ...]]:
    return [(trial.number, trial.state.name, trial.params, trial.intermediate_values) for trial in study.trials()]


def states(study: Study) -> list[str]:
    return [trial.state.name for trial in study.trials()]


def test_a_trial_trains_with_what_it_has_drawn_and_is_worth_its_best_validation(start: Start) -> None:
    world = World(lambda _, step, __: {10: 5.0, 20: 8.0, 30: 7.0}[step])
    (trial,), (options,) = start(world, 1).trials(), world.options["tiny-0"]
    assert float(options.pop("optimizer.peak_lr")) == trial.params["optimizer.peak_lr"]
    expected = {
        "training.select_by": "bleu",
        "training.max_steps": "30",
        "optimizer.warmup_steps": "1",
        "model.d_ff": trial.params["model.d_ff"],
    }
    assert options == expected
    assert (trial.value, trial.intermediate_values) == (8, {10: 5, 20: 8, 30: 7})
    assert len(start(world, 1).trials()) == 1  # a repeated command adds nothing


def test_the_highest_score_or_the_lowest_loss_is_the_best(start: Start) -> None:
    for score, sign in (("bleu", -1), ("loss", 1)):
        world = World(lambda _, step, rate: step * rate)
        world.field = score
        study = start(world, 3, ("score: bleu", f"score: {score}"), ("name: tiny", f"name: {score}"))
        rates = [trial.params["optimizer.peak_lr"] for trial in study.ranked()]
        assert rates == sorted(rates, key=lambda rate: sign * rate)
        assert study.ranked()[0].value == pytest.approx((10 if score == "loss" else 30) * rates[0])


def test_an_interrupted_trial_is_resumed_as_if_nothing_had_been(start: Start) -> None:
    expected = told(start(World(lambda _, step, rate: step * rate), 5, MEDIAN, root="undisturbed"))
    world = World(lambda _, step, rate: step * rate)
    for disturbed, step, stop in (("tiny-1", 20, KeyboardInterrupt()), ("tiny-4", 10, KilledError())):
        world.events[disturbed, step] = raising(stop)
        with pytest.raises(type(stop)):
            start(world, 5, MEDIAN)
    assert told(start(world, 5, MEDIAN)) == expected
    assert world.options["tiny-1"][0] == world.options["tiny-1"][1]
    assert len(world.options["tiny-0"]) == 1


def test_what_is_worse_than_the_median_is_given_up(start: Start) -> None:
    world = World(lambda number, step, _: step - 8.0 * (number in (2, 3)))
    study = start(world, 5, MEDIAN)
    assert states(study) == ["COMPLETE", "COMPLETE", "PRUNED", "PRUNED", "COMPLETE"]
    assert world.stopped == ["tiny-2", "tiny-3"]
    assert study.trials()[2].intermediate_values == {10: 2, 20: 12}  # before 20 updates nothing is given up


def test_failures_are_remembered_until_three_in_a_row(start: Start) -> None:
    world = World(lambda number, *_: None if number == 6 else 1.0)
    for number in (1, 2, 4, 5):
        world.events[f"tiny-{number}", 20] = raising(ValueError(f"no memory for {number}"))
    with pytest.raises(ValueError, match="3 trials in a row failed"):
        start(world, 9)
    study = start(world, 0)
    assert states(study) == ["COMPLETE", *["FAIL"] * 2, "COMPLETE", *["FAIL"] * 3]
    reasons = [study.trials()[number].user_attrs["why"] for number in (1, 6)]
    assert reasons == ["no memory for 1", "no validation has a finite bleu"]
    assert not world.held


def test_two_processes_share_a_study(start: Start) -> None:
    """Neither trains what the other one does, nor draws the same, though both began with one seed."""
    alone = [trial.params for trial in start(World(), 4, root="alone").trials()]
    world = World()

    def other() -> None:
        world.events["tiny-3", 20] = raising(KilledError())
        with pytest.raises(KilledError):
            start(world, 4)

    world.events["tiny-0", 20] = other
    drawn = [trial.params for trial in start(world, 4).trials()]
    assert drawn[:3] == alone[:3]  # the fourth was drawn before the first had its score
    assert [len(world.options[f"tiny-{number}"]) for number in range(4)] == [1, 1, 1, 2]
    assert len({str(params) for params in drawn}) == 4
    assert start(World(), 1, ("seed: 1", "seed: 2"), root="other").trials()[0].params != alone[0]


def test_who_comes_last_waits_and_takes_over_from_the_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.events["tiny-0", 20] = raising(KilledError())
    with pytest.raises(KilledError):
        start(world, 1)
    world.held.add("tiny-0")
    monkeypatch.setattr(time, "sleep", lambda _: world.held.clear())
    assert states(start(world, 1)) == ["COMPLETE"]


def test_what_a_crash_leaves_half_written_is_noticed(start: Start, tmp_path: Path) -> None:
    """A trial that was not drawn whole, a line of the journal without its end, runs without a journal."""
    begun, world = start(World(), 0), World()
    begun.optuna.ask({"model.d_ff": begun.config.space["model.d_ff"].distribution})
    assert states(start(world, 1)) == ["FAIL", "COMPLETE"]
    journal = tmp_path / "pickles" / "tiny-study" / "journal.log"
    with journal.open("ab") as file:
        file.write(b'{"op_code":5,"worker')
    assert len(start(world, 2).trials()) == 3
    journal.unlink()
    (journal.parent / "runs" / "tiny-0").mkdir(parents=True)
    with pytest.raises(ValueError, match="the journal knows nothing: remove"):
        start(world, 0)


def test_only_studies_of_the_same_settings_share_trials(start: Start) -> None:
    study = start(World(), 0)
    for old, new, difference in (
        ("  model.d_ff: {choices: [16, 32]}\n", "", r"space\.model\.d_ff\.choices was .* and is absent"),
        ("max_steps: 30", "max_steps: 60", r"options\.training\.max_steps was 30 and is 60"),
        ("preset/demo", "preset/kftt_ja_en", r"preset\.name was demo and is kftt_ja_en"),
    ):
        with pytest.raises(ValueError, match=f"other settings: {difference}: rename"):
            start(World(), 0, (old, new))
    start(World(), 0, ("seed: 1", "seed: 7"), MEDIAN)
    earlier = {  # numbers and lists, where text is kept now
        "preset": yaml.safe_load((ROOT / "const/preset/demo.yaml").read_text(encoding="utf-8")),
        "options": {"training.max_steps": 30, "optimizer.warmup_steps": 1},
        "space": {
            "optimizer.peak_lr": {"low": 0.001, "high": 0.1, "log": True, "step": None},
            "model.d_ff": {"choices": [16, 32]},
        },
        "score": "bleu",
    }
    study.optuna.set_user_attr("settings", earlier)
    start(World(), 0)


# Trainings in processes of their own.


@pytest.fixture
def standing_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A training with a small program in the place of train.py."""
    monkeypatch.setattr("utils.experiment.trial.ROOT", tmp_path)

    def begun(program: str) -> Any:
        (tmp_path / "train.py").write_text(f"import os, signal, sys, time\n{program}\n")
        return training_process("trial-7", [], tmp_path, tmp_path / "pickles")

    return begun


def test_an_orphan_keeps_its_run(standing_for: Callable[..., Any], tmp_path: Path) -> None:
    """Whoever began the training is killed; the training lives, and so does its lock."""
    standing_for("time.sleep(60)")
    program = f"""
import os, signal
from pathlib import Path
from utils.experiment import trial
trial.ROOT = Path({str(tmp_path)!r})
with trial.training_process("trial-7", [], trial.ROOT, trial.ROOT / "pickles") as training:
    print(training.process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    parent = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        with pytest.raises(BusyError), standing_for("time.sleep(60)"):
            pass
    finally:
        os.kill(int(parent.stdout), signal.SIGKILL)


def test_a_failure_is_told_and_a_stop_from_elsewhere_is_none(standing_for: Callable[..., Any]) -> None:
    for program, why in (("exit(3)", "exit status 3"), ("print('a')\nprint(' b ')\nprint()\nexit(1)", "b")):
        with standing_for(program) as begun, pytest.raises(ValueError, match=rf"^the training trial-7 failed: {why} "):
            list(begun.validations())
    for end in ("exit(130)", "exit(143)", "os.kill(os.getpid(), 2)", "os.kill(os.getpid(), 15)"):
        with standing_for(f"signal.signal(2, signal.SIG_DFL)\n{end}") as begun, pytest.raises(KeyboardInterrupt):
            list(begun.validations())


def test_a_training_is_asked_to_stop_and_killed_at_last(
    standing_for: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with standing_for("time.sleep(60)") as alone:
        assert os.getpgid(alone.process.pid) != os.getpgid(0)  # Ctrl-C is not for it
    assert alone.process.returncode == -signal.SIGTERM
    monkeypatch.setattr("utils.experiment.trial.PATIENCE", 0.3)
    with standing_for("signal.signal(15, signal.SIG_IGN)\nprint(flush=True)\ntime.sleep(60)") as deaf:
        while not deaf.output.stat().st_size:
            time.sleep(0.02)
        deaf.stop()
        assert deaf.process.returncode == -signal.SIGKILL
        assert not list(deaf.validations())


def test_a_run_is_resumed_once_it_has_saved_and_left_alone_once_it_has_ended(
    standing_for: Callable[..., Any], tmp_path: Path
) -> None:
    pickles = tmp_path / "pickles"
    for name, file in (("20260101-000000", "step-00000001.pt"), ("20260105-000000", ".step-00000001.pt.7.part")):
        (pickles / f"trial-7-{name}" / "checkpoints").mkdir(parents=True)
        (pickles / f"trial-7-{name}" / "checkpoints" / file).touch()
    run = pickles / "trial-7-20260101-000000"
    records = [{"kind": "dev", "step": 3}, {"kind": "train", "step": 4}, {"kind": "dev", "step": 6}]
    write_lines(run / LOG, map(json.dumps, records))
    with standing_for("print(sys.argv[1:])") as resumed:
        assert list(resumed.validations()) == [records[0], records[2]]
        assert resumed.output.read_text() == f"{['--resume', str(run)]}\n"
    (run / "test.json").touch()
    with standing_for("exit(3)") as ended:
        assert list(ended.validations()) == [records[0], records[2]]
        assert ended.process is None


def test_a_validation_is_yielded_once_however_often_the_log_is_read(
    standing_for: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the training goes on, and when it has ended."""
    monkeypatch.setattr("utils.experiment.trial.POLL", 0.01)
    run, end = tmp_path / "pickles" / "trial-7-20260101-000000", tmp_path / "end"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "step-00000001.pt").touch()
    records = [{"kind": kind, "step": step} for step in (3, 6, 9) for kind in ("train", "dev", "train")]
    with standing_for(f"while not os.path.exists({str(end)!r}): time.sleep(0.01)") as begun:
        validations = begun.validations()
        for n in (2, 5, 8):  # the log ends with a validation
            write_lines(run / LOG, map(json.dumps, records[:n]))
            assert next(validations) == records[n - 1]
        write_lines(run / LOG, map(json.dumps, records))
        end.touch()
        assert list(validations) == []


# Switches, each turned alone.

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


@pytest.fixture
def ablation(tmp_path: Path) -> Ablation:
    return Ablation(load(tmp_path, SWITCHES), tmp_path / "figure" / "ablation" / "tiny", tmp_path / "pickles")


def result(ablation: Ablation, alternative: Alternative, seed: int, dev_bleu: float, run: str = "a-run") -> Result:
    """As `score_run` would give it."""
    kept: Result = read_json(FIGURE / "ablation" / "multi30k" / "base-1.json")
    changed = {key: list(values) for key, values in alternative.changes(ablation.base).items()}
    config = alternative.config_with(seed).plain(portable)
    return kept | {"dev_bleu": dev_bleu, "difference": changed, "run": run, "config": config}


def write(ablation: Ablation, scores: Mapping[str, tuple[float, ...]]) -> Ablation:
    for alternative in ablation.alternatives:
        for seed, dev_bleu in enumerate(scores.get(alternative.slug, ()), 1):
            write_json(ablation.file(alternative, seed), result(ablation, alternative, seed, dev_bleu))
    return ablation


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Trainings that take no time, scored while they are held."""
    world = World()

    def score(run: Path, ablation: Ablation, training: Training, alternative: Alternative) -> Result:
        assert training.name in world.held
        return result(ablation, alternative, training.seed, 30.0, run.name)

    monkeypatch.setattr("utils.experiment.ablation.training_process", world.training)
    monkeypatch.setattr("utils.experiment.ablation.score_run", score)
    return world


def whose(ablation: Ablation) -> dict[str, str]:
    """Names of the results, and whose weights they are of."""
    return {file.stem: read_json(file)["run"] for file in sorted(ablation.folder.glob("*"))}


def test_everything_is_trained_once_as_train_reads_it(ablation: Ablation, world: World) -> None:
    """A beam has no weights: it translates with the base's. The first seed of everything comes first."""
    assert {str(alternative): alternative.changes(ablation.base) for alternative in ablation.alternatives} == {
        "base": {},
        "norm last": {"model.norm_first": (True, False)},
        "beam 1, greedy": {"search.beam_size": (4, 1)},
        "beam 2": {"search.beam_size": (4, 2)},
        "dropout 0.3": {"model.dropout": (0.1, 0.3)},
    }
    ablation.train()
    assert list(world.options) == NAMES
    assert len(whose(ablation)) == 2 * 5
    assert whose(ablation)["beam-2-2"] == "tiny-base-2"
    for training in ablation.trainings:
        (given,) = world.options[training.name]
        options = [f"--{key}={value}" for key, value in given.items()]
        config = read_arguments(["--config", "demo", *options, "--name", training.name]).config
        assert config == training.translating[0].config_with(training.seed, training.name)
    (ablation.folder / "beam-2-2.json").unlink()
    ablation.train()
    assert sum(map(len, world.options.values())) == len(NAMES) + 1
    assert whose(ablation)["beam-2-2"] == "tiny-base-2"


def test_what_others_are_training_is_waited_for(
    ablation: Ablation, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One other process drops its training, another finishes it."""

    def sleep(_: float) -> None:
        if len(world.options) == 5:
            write(ablation, dict.fromkeys(("base", "beam-1-greedy", "beam-2"), (30.0,)))
            world.held.clear()

    world.held = {"tiny-base-1", "tiny-norm-last-1"}
    world.events["tiny-dropout-0.3-1", 10] = lambda: world.held.remove("tiny-norm-last-1")
    monkeypatch.setattr(time, "sleep", sleep)
    ablation.train()
    assert set(world.options) == set(NAMES)
    assert whose(ablation)["base-1"] == "a-run"
    assert "tiny-base-1" not in world.saved


def test_failures_are_told_and_the_others_are_trained(ablation: Ablation, world: World) -> None:
    """A stop is no failure: nothing else is trained."""
    world.events["tiny-norm-last-1", 10] = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        ablation.train()
    assert list(world.options) == NAMES[:2]
    assert not world.held
    world.events["tiny-norm-last-1", 10] = raising(OSError(28, "No space"))
    world.events["tiny-dropout-0.3-2", 10] = raising(RuntimeError("no\n memory"))
    with pytest.raises(ValueError, match=r"2 of 6 trainings failed: .*norm-last-1: .*; .*-0.3-2: no memory"):
        ablation.train()
    assert len(whose(ablation)) == 2 * 5 - 2


def test_results_and_runs_of_other_settings_are_refused(ablation: Ablation, world: World, tmp_path: Path) -> None:
    """Settings that a result does not know had their defaults then; a run may search otherwise."""
    write(ablation, SCORES)
    file = ablation.file(ablation.base, 1)
    older = read_json(file)
    del older["config"]["model"]["positions"]
    write_json(file, older)
    ablation.train()
    older["config"]["model"]["d_ff"] = 77
    other = r"of other settings \(model\.d_ff is 77, not 512\): remove it"
    for result, complaint in ((older, other), ({"run": "a", "config": 3}, "damaged")):
        write_json(file, result)
        for read in (ablation.train, ablation.rows):
            with pytest.raises(ValueError, match=rf"base-1\.json is {complaint}"):
                read()
    file.unlink()
    run = tmp_path / "pickles" / "tiny-base-1-20260101-000000"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "step-00000002.pt").touch()
    wanted = ablation.base.config_with(1, "tiny-base-1")
    replace(wanted, model=replace(wanted.model, dropout=0.25)).save(run / CONFIG)
    with pytest.raises(ValueError, match=rf"{run} is of other settings \(model\.dropout is 0\.25, not 0\.1\)"):
        ablation.train()
    assert wanted.training.precision == "auto"
    settled = replace(wanted, training=replace(wanted.training, precision="bf16"))
    replace(settled, search=replace(wanted.search, beam_size=9)).save(run / CONFIG)
    ablation.train()
    assert list(world.options) == ["tiny-base-1"]


def test_a_result_is_what_the_weights_translate_as_the_alternative_searches(tmp_path: Path) -> None:
    splits = {"": slice(None), "dev_": slice(0, 6), "test_": slice(30, 34)}
    texts = {f"{split}{side}": tmp_path / f"{split}my.{side}" for split in splits for side in ("src", "tgt")}
    for name, file in texts.items():
        write_lines(file, getattr(TINY_TEXT, name[-3:])[splits[name[:-3]]])
    data = ", ".join(f"{name}: {file}" for name, file in texts.items())
    (tmp_path / "preset.yaml").write_text(f"data: {{{data}}}\nsearch: {{beam_size: 1, max_ratio: 1.0}}\n")
    switches = 'switches: {beam: {"3": {search.beam_size: 3, search.length_penalty: 2}}}'
    config = load(tmp_path, f"name: tiny\npreset: {tmp_path}/preset.yaml\nseeds: [1]\n{switches}")
    folder = tiny_run(tmp_path / "pickles")
    facts = ("best_step", "steps", "target_tokens", "parameters", "finished", "commit", "machine")
    write_json(folder / "test.json", {name: f"the {name}" for name in facts})
    records = ({"kind": "train", "step": 2, "minutes": 0.1}, {"kind": "dev", "step": 2, "minutes": 1.5})
    write_lines(folder / "log.jsonl", map(json.dumps, records))
    ablation = Ablation(config, tmp_path / "results")
    (training,) = ablation.trainings
    corpus, ours = prepare_corpus(ablation.base.config.data), load_run(folder, pick_device("cpu"))
    for alternative in ablation.alternatives:
        result = score_run(folder, ablation, training, alternative)
        translator = ours.translator(alternative.config.search)
        for split in ("dev", "test"):
            pairs = read_parallel(getattr(corpus, split))
            translations = [translation.text for translation in translator.translate(pairs.src)]
            bleu, chrf, *_ = measure(translations, pairs.tgt, corpus_metrics(corpus))
            assert (result[f"{split}_bleu"], result[f"{split}_chrf"]) == (bleu.score, chrf.score)
    assert result["difference"] == {"search.beam_size": [1, 3], "search.length_penalty": [0.6, 2.0]}
    assert (result["text"], result["run"], result["config"]["search"]["beam_size"]) == ("files, ja-en", folder.name, 3)
    assert (result["steps"], result["minutes"], result["trained"]["commit"]) == ("the steps", 1.5, "the commit")


def test_what_does_not_translate_is_compared_by_its_accuracy(tmp_path: Path) -> None:
    switches = "switches: {activation: {ReLU: {model.activation: relu}}}"
    config = load(tmp_path, f"name: tiny\npreset: const/preset/bert_tanaka_ja.yaml\nseeds: [1, 2]\n{switches}")
    ablation = Ablation(config, tmp_path / "results")
    folder = tmp_path / "run"
    test = {"text": "tanaka ja", "accuracy": 50.0, "perplexity": 9.0, "best_step": 2, "steps": 4, "parameters": 1e6}
    test |= {"target_tokens": 1e6, "finished": "now", "commit": "abc", "machine": "one"}
    write_json(folder / "test.json", test)
    for training in ablation.trainings:
        (alternative,), seed = training.translating, training.seed
        accuracy = 40.0 + 2 * (alternative is ablation.base) + seed / 10
        best = {"kind": "dev", "step": 2, "minutes": 0.5, "accuracy": accuracy, "perplexity": 8.0}
        train, last = best | {"kind": "train"}, best | {"step": 4, "minutes": 1.5, "accuracy": 30.0}
        write_lines(folder / "log.jsonl", map(json.dumps, (train, best, last)))
        result = score_run(folder, ablation, training, alternative)
        scores = [result[name] for name in ("dev_accuracy", "test_accuracy", "dev_perplexity", "minutes")]
        assert scores == [accuracy, 50.0, 8.0, 1.5]
        write_json(ablation.file(alternative, seed), result)
    rows = ablation.rows()
    assert rows[1].verdict == "worse"
    assert rows[1].difference == pytest.approx(-2)
    text = page(ablation, rows, "", "a.png")
    assert "| dev accuracy | difference | verdict | test accuracy | dev perplexity |" in text
    assert "| **40.15 ± 0.07** | -2.00 (± 0.30) | worse | 50.00 ± 0.00 | 8.00 ± 0.00 |" in text
    assert "BLEU" not in text
    assert "Signatures" not in text
    draw(rows, "tiny", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


# Claims.


def error_rate(t: float, freedom: int) -> float:
    """P(|t| > t) for Student's density, summed over small steps of its angle."""
    angles = np.linspace(0, math.pi / 2, 200_001)  # t = √ν tan, which turns the density into a power of the cosine
    density = np.cos(angles) ** (freedom - 1)
    return float(density[angles > math.atan(t / math.sqrt(freedom))].sum() / density.sum())


def test_no_difference_is_claimed_for_one_in_twenty() -> None:
    for freedom in (*range(1, 11), 20, 30, 60, 120):
        t = margin([[0.0, math.sqrt(2)]] * freedom, 2, 2)  # the spread is 1, and so is a difference's standard error
        assert t is not None
        assert error_rate(t, freedom) == pytest.approx(0.05, abs=0.0005)


def test_the_spread_is_pooled_around_each_mean() -> None:
    """By hand: squares 1 + 1, 4 + 4 and 0 + 1 + 1, of 7 values around 3 means."""
    groups = [[10.0, 12.0], [20.0, 24.0], [30.0, 29.0, 31.0], []]
    assert margin(groups, 2, 4) == pytest.approx(2.78 * math.sqrt(12 / 4) * math.sqrt(1 / 2 + 1 / 4))
    assert margin([[1.0] * 2, [1.0] * 15], 1, 1) == 0  # of 15 degrees, the smaller number in the table


def test_differences_are_claimed_beyond_the_margin_of_several_seeds(ablation: Ablation) -> None:
    with pytest.raises(ValueError, match="no result of the base"):
        ablation.rows()
    rows = write(ablation, {"base": (30.0,), "norm-last": (28.0,)}).rows()
    assert [row.verdict for row in rows] == ["unknown", "unknown"]
    assert "Without a result: beam 1, greedy, beam 2, dropout 0.3." in page(ablation, rows, "", "")
    rows = write(ablation, SCORES).rows()
    verdicts = ["no difference seen", "worse", "no difference seen", "no difference seen", "better"]
    assert [row.verdict for row in rows] == verdicts
    assert all(row.margin == pytest.approx(MARGIN) for row in rows)
    assert rows[2].difference == pytest.approx(-0.6)


KEPT = [file for file in STUDIES if (FIGURE / f"{file.stem}.md").exists()]


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.stem)
def test_the_page_of_the_repository_is_what_its_results_say(file: Path) -> None:
    config: Any = command.load(file)
    ablation = Ablation(config, FIGURE / "ablation" / file.stem.removeprefix("ablation_"))
    text = page(ablation, ablation.rows(), f"python study.py const/study/{file.name} --report", f"{file.stem}.png")
    assert (FIGURE / f"{file.stem}.md").read_text(encoding="utf-8") == text


# The command.

Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run study.py in this process, in a world of trainings that take no time."""

    def run_it(*arguments: str | Path, text: str, world: World | None = None) -> Outcome:
        (tmp_path / "my.yaml").write_text(text, encoding="utf-8")
        if world is not None:
            monkeypatch.setattr("utils.experiment.study.training_process", world.training)
        monkeypatch.setattr("utils.experiment.study.Study", lambda config: Study(config, tmp_path / "pickles"))
        return outcome("study.py", command.main, capsys, tmp_path / "my.yaml", *arguments)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield run_it
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_search_tells_each_trial_and_writes_its_best_pictures_and_files(run: Run, tmp_path: Path) -> None:
    world = World(lambda number, step, _: step + number / 10 - 9.0 * (number == 3))
    world.events["tiny-1", 20] = raising(ValueError("out of memory"))
    ended = run("--trials", "5", "--best", tmp_path / "best.yaml", world=world, text=SEARCH.replace(*MEDIAN))
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    ends = ("complete  .*BLEU 30.00 .* 3.0  best .*trial 0", "fail .*out of memory", "complete", "pruned .*BLEU 11.30")
    for number, (line, end) in enumerate(zip(lines, ends, strict=False)):
        assert re.match(f"trial {number}  {end}", line)
    assert "tiny-study: 4 complete, 1 pruned, 1 fail" in ended.out
    table = [line.split() for line in lines if re.match(r" +\d", line)]
    assert [row[:3] for row in table] == [[n, "BLEU", f"30.{n}0"] for n in ("5", "4", "2", "0")]
    for name in ("history", "curves", "importance"):
        assert (tmp_path / "pickles" / "tiny-study" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    best = TranslationConfig.load(tmp_path / "best.yaml")
    (again,) = (line for line in lines if line.startswith("  python train.py"))
    assert read_arguments(shlex.split(again)[2:]).config == best
    assert (best.name, best.training.max_steps) == ("tiny-best", 30)


def test_mistakes_and_interruptions_are_told_in_a_line(run: Run, tmp_path: Path) -> None:
    for few in ("-1", "0"):
        assert f"--trials {few}: give 1 or more" in run("--trials", few, text=SEARCH).complaint
    assert "--best" in run("--best", tmp_path / "b", text=SWITCHES).complaint
    assert not (tmp_path / "pickles").exists()
    world = World()
    world.events["tiny-0", 20] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ended = run("--trials", "2", world=world, text=SEARCH)
    assert ended.status == INTERRUPTED
    assert "the same command resumes it" in ended.out.splitlines()[-1]
    assert "no trial is complete yet" in run("--report", world=world, text=SEARCH).out
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    world.events["tiny-0", 20] = lambda: os.kill(os.getpid(), signal.SIGHUP)
    assert run("--trials", "1", world=world, text=SEARCH).status == 0
    assert len(world.options["tiny-0"]) == 2


def test_an_ablation_writes_a_table_and_a_picture_for_a_report_the_same(
    run: Run, ablation: Ablation, world: World, tmp_path: Path
) -> None:
    write(ablation, SCORES)
    kinds = ("md", "png", "ja.png")
    table, picture, japanese = (tmp_path / "figure" / f"ablation_tiny.{kind}" for kind in kinds)
    made = set()
    for arguments in ((), ("--report",)):
        ended = run("--folder", tmp_path / "figure", *arguments, text=SWITCHES)
        assert (ended.status, ended.out.splitlines()) == (0, [*map(str, (table, picture, japanese))])
        made.add(table.read_text(encoding="utf-8"))
    assert not world.options
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert japanese.read_bytes() != picture.read_bytes()
    (text,) = made
    assert "`optimizer.clip_norm` null, `optimizer.betas` [0.5, 0.75]" in text
