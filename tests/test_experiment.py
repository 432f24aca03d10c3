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
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import numpy as np
import optuna
import pytest
import yaml

import study as command
from bench.faults import TinyTraining
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
from utils.evaluation.judge import Validator
from utils.experiment import ablation as ablation_module
from utils.experiment import study as study_module
from utils.experiment.ablation import (
    Ablation,
    Alternative,
    Result,
    Spread,
    Training,
    differences,
    margin,
    page,
    pooled,
    score_run,
)
from utils.experiment.study import Domain, Study
from utils.experiment.trial import BusyError, TrainingProcess, run_named
from utils.file import write_json, write_lines
from utils.load import load_run
from utils.provenance import portable
from utils.run import CONFIG
from utils.training.report import LOG, read_log

pytestmark = no_warning
SEARCH = """
name: tiny
preset: const/preset/demo.yaml
options: {training.max_steps: 30}
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
MEDIAN = ("pruner: none", "pruner: {startup_trials: 2, warmup_steps: 20}")
STUDIES = sorted((ROOT / "const" / "study").glob("*.yaml"))


class KilledError(BaseException):
    """The process is gone, and could do nothing about it."""


class At(NamedTuple):
    number: int  # at the end of the run's name
    step: int
    rate: float


class World:
    """Trainings that take no time: what outlives a process, that is how far each has come, and who holds it."""

    def __init__(self, score: Callable[[At], float | None] = lambda at: at.step, steps: Sequence[int] = (10, 20, 30)):
        self.score, self.steps, self.field = score, steps, "bleu"
        self.saved: dict[str, list[dict[str, Any]]] = {}  # validations by name
        self.options: dict[str, list[dict[str, str]]] = {}  # of each time that it was begun or resumed
        self.held: set[str] = set()
        self.stopped: list[str] = []
        self.events: dict[tuple[str, int], Callable[[], object]] = {}  # happen once, before this validation
        self.stamp = ""  # of runs

    def training(self, name: str, options: Sequence[str], folder: Path, root: Path) -> "FakeTraining":
        assert options[0] == "--config"
        given = dict(option.removeprefix("--").split("=") for option in options[2:])
        return FakeTraining(self, name, given, folder / f"{name}.log", root / (name + self.stamp))


class FakeTraining(NamedTuple):
    world: World
    name: str
    options: dict[str, str]
    output: Path
    run: Path

    def __enter__(self) -> Self:
        if self.name in self.world.held:
            raise BusyError(self.name)
        self.world.held.add(self.name)
        self.world.options.setdefault(self.name, []).append(self.options)
        return self

    def __exit__(self, *_: object) -> None:
        self.world.held.remove(self.name)

    def validations(self) -> Iterator[dict[str, Any]]:
        log = self.world.saved.setdefault(self.name, [])
        yield from list(log)
        for step in self.world.steps[len(log) :]:
            assert self.name not in self.world.stopped
            self.world.events.pop((self.name, step), int)()
            at = At(int(self.name.rpartition("-")[2]), step, float(self.options.get("optimizer.peak_lr", 0)))
            log.append({"step": step, "epoch": 0, "minutes": step / 10, self.world.field: self.world.score(at)})
            yield log[-1]

    def stop(self) -> None:
        self.world.stopped.append(self.name)


def raising(error: BaseException) -> Callable[[], None]:
    def happen() -> None:
        raise error

    return happen


@cache
def searching(*changes: tuple[str, str]) -> Any:
    with TemporaryDirectory() as folder:
        return load(Path(folder), SEARCH, *changes)


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
MISTAKES = [
    (SEARCH, "name: tiny", "nam: tiny", "line 2: unknown setting nam: did you mean name"),
    (SEARCH, "name: tiny", "name: ../tiny", r"name=\.\./tiny"),
    (SEARCH, "training.max_steps: 30", "name: other", "name is not a setting"),
    (SEARCH, "training.max_steps: 30", "model.d_ff: 16", "model.d_ff .*give its range"),
    (SEARCH, "model.d_ff:", "model.dff:", r"space\.model\.dff: .*did you mean model\.d_ff"),
    (SEARCH, "model.d_ff:", "training.select_by:", r"training\.select_by .*give score"),
    (SEARCH, "[16, 32]", "[16, 16]", "once"),
    (SEARCH, RATE, "low: -1.0, high: 0.01", r"peak_lr=-1"),
    (SEARCH, "0.1, log", "0.1, lgo", r"unknown setting space\.optimizer\.peak_lr\.lgo: did you mean .*\.log\?"),
    (SEARCH, "low: 1e-3, ", "", r"space\.optimizer\.peak_lr: .*low"),
    (SEARCH, "low: 1e-3", "low: 0.2", "low=0.2"),
    (SEARCH, "{choices:", "{low: 1, choices:", "low and high, or"),
    (SEARCH, "log: true", "log: true, step: 0.01", "step"),
    (SEARCH, RATE, "low: 0.0, high: 1.0, step: 0.3", "whole number of steps"),
    (SEARCH, "pruner: none", "pruner: medain", r"pruner\.kind=medain"),
    (SEARCH, "space:", "switches: {}\nspace:", "either a space, or switches"),
    # a loss is per token, and a pruner compares after equally many updates
    (SEARCH.replace("score: bleu", "score: loss"), "model.d_ff: {choices: [16, 32]}", SIZES, "give score: bleu"),
    (SEARCH.replace(*MEDIAN), "model.d_ff:", "batch.accumulate:", "give pruner: none"),
    (SWITCHES, "norm_first", "norm_frist", r"norm last: .*did you mean model\.norm_first"),
    (SWITCHES, "search.beam_size: 2", "search.beam_size: 4", "beam 2 does not differ"),
    (SWITCHES, "search.beam_size: 2", "training.seed: 2", r"beam 2: training\.seed .*give seeds"),
    (SWITCHES, 'dropout:\n    "0.3":', "脱落:\n    多め:", "脱落 多め has the same short name"),
    (SWITCHES, '"2"', "1 (greedy)", r"beam 1 \(greedy\) has the same short name"),
    (SWITCHES, "[1, 2]", "[1, 1]", "each seed once"),
    (SWITCHES, "demo", "bert_ja", "base: "),
]


@pytest.mark.parametrize(("text", "old", "new", "message"), MISTAKES)
def test_a_mistake_is_a_line_before_anything_is_trained(
    tmp_path: Path, text: str, old: str, new: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path, text, (old, new))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "tiny.yaml"))
    assert str(caught.value).count("tiny.yaml") == 1


def test_values_are_drawn_as_they_are_meant() -> None:
    def drawn(**given: Any) -> list[Any]:
        sampled = optuna.create_study(sampler=optuna.samplers.RandomSampler(1))
        return [sampled.ask({"x": Domain(**given).distribution}).params["x"] for _ in range(100)]

    assert set(drawn(low=2, high=5)) == {2, 3, 4, 5}
    assert set(drawn(low=2, high=6, step=2)) == {2, 4, 6}
    assert {round(value, 9) for value in drawn(low=0.1, high=0.4, step=0.1)} == {0.1, 0.2, 0.3, 0.4}
    assert any(value % 1 for value in drawn(low=2.0, high=5))
    assert 30 < sum(value < 1e-3 for value in drawn(low=1e-4, high=1e-2, log=True)) < 70
    assert set(drawn(choices=["true", "null", "[1, 2]"])) == {"true", "null", "[1, 2]"}


# A search.


Start = Callable[..., Study]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start or resume the study in a world of trainings that take no time, and search for so many trials."""

    def started(world: World, n_trials: int, *changes: tuple[str, str], root: str = "pickles") -> Study:
        monkeypatch.setattr(study_module, "TrainingProcess", world.training)
        study = Study(searching(*changes), tmp_path / root)
        study.search(n_trials)
        return study

    return started


def told(study: Study) -> list[tuple[Any, ...]]:
    return [(trial.number, trial.state.name, trial.params, trial.intermediate_values) for trial in study.trials()]


def states(study: Study) -> list[str]:
    return [trial.state.name for trial in study.trials()]


def test_a_trial_trains_with_what_it_has_drawn_and_is_worth_its_best_validation(start: Start) -> None:
    world = World(lambda at: {10: 5.0, 20: 8.0, 30: 7.0}[at.step])
    study = start(world, 1)
    (trial,), (options,) = study.trials(), world.options["tiny-0"]
    assert float(options.pop("optimizer.peak_lr")) == trial.params["optimizer.peak_lr"]
    expected = {"training.select_by": "bleu", "training.max_steps": "30", "model.d_ff": trial.params["model.d_ff"]}
    assert options == expected
    assert study.values(trial)["model.d_ff"] in (16, 32)
    assert (trial.value, trial.intermediate_values) == (8, {10: 5, 20: 8, 30: 7})
    assert trial.user_attrs["minutes"] == 3


def test_the_highest_score_or_the_lowest_loss_is_the_best_and_a_repeated_command_adds_nothing(start: Start) -> None:
    world = World(lambda at: at.step * at.rate)
    scored = start(world, 4)
    rates = [trial.params["optimizer.peak_lr"] for trial in scored.ranked()]
    assert rates == sorted(rates, reverse=True)
    assert [len(start(world, n).trials()) for n in (4, 5)] == [4, 5]
    world.field = "loss"
    lost = start(world, 3, ("score: bleu", "score: loss"), ("name: tiny", "name: lost"))
    least = min(trial.params["optimizer.peak_lr"] for trial in lost.trials())
    assert lost.ranked()[0].params["optimizer.peak_lr"] == least
    assert lost.ranked()[0].value == pytest.approx(10 * least)


def test_an_interrupted_trial_is_resumed_as_if_nothing_had_been(start: Start) -> None:
    expected = told(start(World(lambda at: at.step * at.rate), 5, MEDIAN, root="undisturbed"))
    world = World(lambda at: at.step * at.rate)
    for disturbed, step, stop in (("tiny-1", 20, KeyboardInterrupt()), ("tiny-4", 10, KilledError())):
        world.events[disturbed, step] = raising(stop)
        with pytest.raises(type(stop)):
            start(world, 5, MEDIAN)
    assert told(start(world, 5, MEDIAN)) == expected
    assert world.options["tiny-1"][0] == world.options["tiny-1"][1]
    assert len(world.options["tiny-0"]) == 1


def test_what_is_worse_than_the_median_is_given_up(start: Start) -> None:
    world = World(lambda at: at.step - 8.0 * (at.number in (2, 3)))
    study = start(world, 5, MEDIAN)
    assert states(study) == ["COMPLETE", "COMPLETE", "PRUNED", "PRUNED", "COMPLETE"]
    assert world.stopped == ["tiny-2", "tiny-3"]
    assert study.trials()[2].intermediate_values == {10: 2, 20: 12}  # before 20 updates nothing is given up


def test_failures_are_remembered_until_three_in_a_row(start: Start) -> None:
    world = World(lambda at: None if at.number == 6 else 1.0)
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
    assert len({str(params) for params in drawn}) == len({str(params) for params in alone}) == 4
    assert start(World(), 1, ("seed: 1", "seed: 2"), root="other").trials()[0].params != alone[0]


def test_who_comes_last_waits_for_the_others(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is killed at last, and its trial is resumed."""
    world, looks = World(), list[float]()
    world.events["tiny-0", 20] = raising(KilledError())
    with pytest.raises(KilledError):
        start(world, 1)
    world.held.add("tiny-0")

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            world.held.clear()

    monkeypatch.setattr(time, "sleep", sleep)
    assert (states(start(world, 1)), len(looks)) == (["COMPLETE"], 3)


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
        "options": {"training.max_steps": 30},
        "space": {
            "optimizer.peak_lr": {"low": 0.001, "high": 0.1, "log": True, "step": None},
            "model.d_ff": {"choices": [16, 32]},
        },
        "score": "bleu",
    }
    study.optuna.set_user_attr("settings", earlier)
    start(World(), 0)


# Trainings in processes of their own.

SETTINGS = """
data: {held_out: 8}
tokenizer: {kind: bpe, vocab_size: 48, joint: false}
model: {d_model: 16, n_heads: 2, d_ff: 32, n_encoder_layers: 1, n_decoder_layers: 1, max_length: 40, tie: target}
batch: {tokens_per_batch: 200, max_tokens: 40}
training: {max_steps: 6, validate_every: 3, report_every: 2, precision: fp32, device: cpu}
search: {beam_size: 2, max_ratio: 1.0}
"""
ENDLESS = ("--training.max_steps", "1000000", "--training.max_epochs", "1000000")


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrainingProcess]:
    """Training number 7 of a study, as a process of its own."""
    monkeypatch.setenv("MIYAKO_CORPUS", str(tmp_path / "corpus"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    tiny = TinyTraining(tmp_path, SETTINGS)
    files = ("--data.src", str(tmp_path / "my.ja"), "--data.tgt", str(tmp_path / "my.en"))
    settings = ("--config", str(tiny.folder / "faults.yaml"), *files)
    return lambda *options: TrainingProcess("trial-7", [*settings, *options], tmp_path / "study", tmp_path / "pickles")


@pytest.mark.slow
def test_one_process_trains_the_next_resumes_and_failures_say_why(training: Callable[..., TrainingProcess]) -> None:
    with training(*ENDLESS) as first:
        with pytest.raises(BusyError, match="trial-7"), training():
            pass
        assert next(iter(first.validations()))["step"] == 3
        first.stop()
    assert first.run is not None
    before = [record["step"] for _, record in read_log(first.run / LOG) if record["kind"] == "dev"]
    with training() as second:
        after = []
        for record in second.validations():
            after.append(record["step"])
            if len(after) == len(before) + 2:
                second._process.kill()  # type: ignore[union-attr]
                with pytest.raises(ValueError, match=r"trial-7 failed: killed by SIGKILL, .*trial-7\.log"):
                    list(second.validations())
                break
    assert second.run == first.run
    assert after == list(range(3, after[-1] + 1, 3))


@pytest.mark.slow
def test_an_orphan_keeps_its_run(training: Callable[..., TrainingProcess]) -> None:
    """Whoever began the training is killed; the training lives, and so does its lock."""
    own = training(*ENDLESS)
    program = (
        "import os, signal, sys; from pathlib import PosixPath; from utils.experiment.trial import TrainingProcess;"
        f"training = TrainingProcess('trial-7', {own._options!r}, {own.output.parent!r}, {own._root!r}).__enter__();"
        "print(training._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    try:
        with pytest.raises(BusyError), training():
            pass
    finally:
        os.kill(int(parent.stdout), signal.SIGKILL)


@pytest.fixture
def standing_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], TrainingProcess]:
    """A training with a small program in the place of train.py."""

    def begun(program: str) -> TrainingProcess:
        (tmp_path / "train.py").write_text(f"import os, signal, time\n{program}\n")
        monkeypatch.setattr("utils.experiment.trial.ROOT", tmp_path)
        (tmp_path / "trial-7.log").write_text("earlier output\n")
        return TrainingProcess("trial-7", [], tmp_path, tmp_path / "pickles")

    return begun


def test_what_somebody_else_has_stopped_has_not_failed(standing_for: Callable[[str], TrainingProcess]) -> None:
    for how in ("exit(130)", "exit(143)", "os.kill(os.getpid(), 2)", "os.kill(os.getpid(), 15)"):
        with standing_for(f"signal.signal(2, signal.SIG_DFL)\n{how}") as begun, pytest.raises(KeyboardInterrupt):
            list(begun.validations())


def test_a_failure_is_told_and_who_does_not_end_is_killed(
    standing_for: Callable[[str], TrainingProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    for program, why in (("exit(3)", "exit status 3"), ("print('a')\nprint(' b ')\nprint()\nexit(1)", "b")):
        with standing_for(program) as begun, pytest.raises(ValueError, match=rf"^the training trial-7 failed: {why} "):
            list(begun.validations())
    with standing_for("time.sleep(9)") as alone:
        assert os.getpgid(alone._process.pid) != os.getpgid(0)  # type: ignore[union-attr]  # Ctrl-C is not for it
    assert alone._process.returncode == -signal.SIGTERM  # type: ignore[union-attr]
    monkeypatch.setattr("utils.experiment.trial.PATIENCE", 0.3)
    with standing_for("signal.signal(15, signal.SIG_IGN)\nprint(flush=True)\ntime.sleep(9)") as deaf:
        while deaf.output.stat().st_size <= deaf._resumed_at:
            time.sleep(0.02)
        deaf.stop()
        assert deaf._process.returncode == -signal.SIGKILL  # type: ignore[union-attr]
        assert not list(deaf.validations())


def test_a_run_is_known_once_it_has_saved_and_left_alone_once_it_has_ended(tmp_path: Path) -> None:
    for name, file in (("20260101-000000", "step-00000001.pt"), ("20260105-000000", ".step-00000001.pt.7.part")):
        (tmp_path / f"trial-1-{name}" / "checkpoints").mkdir(parents=True)
        (tmp_path / f"trial-1-{name}" / "checkpoints" / file).touch()
    run = tmp_path / "trial-1-20260101-000000"
    assert run_named("trial-1", tmp_path) == run
    assert run_named("trial-2", tmp_path) is None
    records = [{"kind": "dev", "step": 3}, {"kind": "train", "step": 4}, {"kind": "dev", "step": 6}]
    write_lines(run / LOG, map(json.dumps, records))
    (run / "test.json").touch()
    with TrainingProcess("trial-1", [], tmp_path, tmp_path) as ended:
        assert list(ended.validations()) == [records[0], records[2]]
    assert not ended.output.exists()


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


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(tmp_path_factory.mktemp("ablation"), SWITCHES)


@pytest.fixture
def ablation(config: Any, tmp_path: Path) -> Ablation:
    return Ablation(config, tmp_path / "figure" / "ablation" / "tiny", tmp_path / "pickles")


def result(ablation: Ablation, alternative: Alternative, seed: int, dev_bleu: float, run: str = "a-run") -> Result:
    """As `score_run` would give it."""
    changed = differences(ablation.base.config, alternative.config)
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
        "config": alternative.config_with(seed).plain(portable),
    }


def write(ablation: Ablation, scores: Mapping[str, tuple[float, ...]]) -> Ablation:
    ablation.folder.mkdir(parents=True, exist_ok=True)
    for alternative in ablation.alternatives:
        for seed, dev_bleu in enumerate(scores.get(alternative.slug, ()), 1):
            found = result(ablation, alternative, seed, dev_bleu)
            ablation.file(alternative, seed).write_text(json.dumps(found))
    return ablation


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


def whose(ablation: Ablation) -> dict[str, str]:
    """Names of the results, and whose weights they are of."""
    return {file.stem: json.loads(file.read_text())["run"] for file in sorted(ablation.folder.glob("*"))}


def test_everything_is_trained_once_as_train_reads_it(ablation: Ablation, world: World) -> None:
    """A beam has no weights: it translates with the base's. The first seed of everything comes first."""
    base = ablation.base.config
    assert {str(one): differences(base, one.config) for one in ablation.alternatives} == {
        "base": {},
        "norm last": {"model.norm_first": (True, False)},
        "beam 1, greedy": {"search.beam_size": (4, 1)},
        "beam 2": {"search.beam_size": (4, 2)},
        "dropout 0.3": {"model.dropout": (0.1, 0.3)},
    }
    assert (base.optimizer.clip_norm, base.optimizer.betas) == (None, (0.5, 0.75))
    ablation.train()
    assert list(world.options) == NAMES
    assert len(whose(ablation)) == 2 * 5
    assert whose(ablation)["beam-2-2"] == "tiny-base-2"
    for training in ablation.trainings():
        (given,) = world.options[training.name]
        options = [f"--{key}={value}" for key, value in given.items()]
        found = read_arguments(["--config", "demo", *options, "--name", training.name]).config
        assert found == training.translating[0].config_with(training.seed, training.name)
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
    again = [name for name, run in whose(ablation).items() if run.endswith("-again")]
    assert again == ["base-2", "beam-1-greedy-2", "beam-2-2", "norm-last-1"]
    world.stamp = ""  # as if the process had been killed between two of these
    found = result(ablation, ablation.alternatives[3], 2, 30.0, "tiny-base-2")
    ablation.file(ablation.alternatives[3], 2).write_text(json.dumps(found))
    ablation.train()
    assert {run for name, run in whose(ablation).items() if "-2" in name[-2:] and "b" in name[0]} == {"tiny-base-2"}


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
    assert whose(ablation)["base-1"] == "a-run"
    assert "tiny-base-1" not in world.saved


def test_failures_are_told_and_the_others_are_trained(ablation: Ablation, world: World) -> None:
    """A stop is no failure: nothing else is trained."""
    world.events["tiny-norm-last-1", 1] = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        ablation.train()
    assert list(world.options) == NAMES[:2]
    assert not world.held
    world.events["tiny-norm-last-1", 1] = raising(OSError(28, "No space"))
    world.events["tiny-dropout-0.3-2", 1] = raising(RuntimeError("no\n memory"))
    with pytest.raises(ValueError, match=r"2 of 6 trainings failed: .*norm-last-1: .*; .*-0.3-2: no memory"):
        ablation.train()
    assert len(whose(ablation)) == 2 * 5 - 2


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
        ('{"run": "a", "config": 3}', "damaged"),
    ):
        file.write_text(text)
        for look in (ablation.train, ablation.rows):
            with pytest.raises(ValueError, match=rf"base-1\.json is {complaint}"):
                look()
    file.unlink()
    run = tmp_path / "pickles" / "tiny-base-1-20260101-000000"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "step-00000002.pt").touch()
    wanted = ablation.base.config_with(1, "tiny-base-1")
    replace(wanted, model=replace(wanted.model, dropout=0.25)).save(run / CONFIG)
    with pytest.raises(ValueError, match=rf"{run} is of other settings \(model\.dropout is 0\.25, not 0\.1\)"):
        ablation.train()
    replace(wanted, search=replace(wanted.search, beam_size=9)).save(run / CONFIG)
    ablation.train()
    assert list(world.options) == ["tiny-base-1"]


def test_a_result_is_what_the_weights_translate_as_the_alternative_searches(tmp_path: Path) -> None:
    """By a way of its own: each text translated by the run, and scored as a training scores."""
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
    assert (found["steps"], found["minutes"], found["trained"]["commit"]) == ("the steps", 1.5, "the commit")


# Claims.


def error_rate(t: float, freedom: int) -> float:
    """P(|t| > t) for Student's density, summed over small steps of its angle."""
    angles = np.linspace(0, math.pi / 2, 200_001)  # t = √ν tan, which turns the density into a power of the cosine
    density = np.cos(angles) ** (freedom - 1)
    return float(density[angles > math.atan(t / math.sqrt(freedom))].sum() / density.sum())


def test_no_difference_is_claimed_for_one_in_twenty() -> None:
    for freedom in (*range(1, 11), 20, 30, 60, 120):
        t = margin(Spread(1.0, freedom), 2, 2)
        assert t is not None
        assert error_rate(t, freedom) == pytest.approx(0.05, abs=0.0005)
        assert margin(Spread(1.0, freedom + 1), 2, 2) <= t  # type: ignore[operator]


def test_the_spread_is_pooled_around_each_mean() -> None:
    """By hand: squares 1 + 1, 4 + 4 and 0 + 1 + 1, of 7 values around 3 means."""
    spread = pooled([[10.0, 12.0], [20.0, 24.0], [30.0, 29.0, 31.0]])
    assert spread == Spread(pytest.approx(math.sqrt(12 / 4)), 4)  # type: ignore[arg-type]
    assert pooled([[1.0, 1.0], [100.0, 100.0]]) == Spread(0.0, 2)
    assert pooled([[1.0], [5.0], []]) is None
    assert margin(Spread(0.6, 9), 2, 4) == pytest.approx(2.26 * 0.6 * math.sqrt(1 / 2 + 1 / 4))
    assert margin(None, 2, 4) is None


def test_differences_are_claimed_beyond_the_margin(ablation: Ablation) -> None:
    rows = {row.alternative.slug: row for row in write(ablation, SCORES).rows()}
    verdicts = ["no difference seen", "worse", "no difference seen", "no difference seen", "better"]
    assert [row.verdict for row in rows.values()] == verdicts
    assert all(row.margin == pytest.approx(MARGIN) for row in rows.values())
    assert rows["beam-1-greedy"].difference == pytest.approx(-0.6)


def test_one_seed_claims_nothing_and_what_is_missing_is_named(ablation: Ablation) -> None:
    with pytest.raises(ValueError, match="no result of the base"):
        ablation.rows()
    rows = write(ablation, {"base": (30.0,), "norm-last": (28.0,)}).rows()
    assert [row.verdict for row in rows] == ["unknown", "unknown"]
    assert "Without a result: beam 1, greedy, beam 2, dropout 0.3." in page(ablation, rows, "", "")


@pytest.mark.parametrize("file", [file for file in STUDIES if "ablation" in file.stem], ids=lambda file: file.stem)
def test_the_page_of_the_repository_is_what_its_results_say(file: Path) -> None:
    ablation = Ablation(command.load(file), FIGURE / "ablation" / file.stem.removeprefix("ablation_"))  # type: ignore[arg-type]
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
            monkeypatch.setattr(study_module, "TrainingProcess", world.training)
        monkeypatch.setattr(study_module, "Study", lambda config: Study(config, tmp_path / "pickles"))
        monkeypatch.setattr(sys, "argv", ["study.py", str(tmp_path / "my.yaml"), *map(str, arguments)])
        return outcome("study.py", command.main, capsys)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield run_it
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_search_tells_each_trial_and_writes_its_best_pictures_and_files(run: Run, tmp_path: Path) -> None:
    world = World(lambda at: at.step + at.number / 10 - 9.0 * (at.number == 3))
    world.events["tiny-1", 20] = raising(ValueError("out of memory"))
    files = ("--best", tmp_path / "best.yaml", "--json", tmp_path / "all.json")
    ended = run("--trials", "5", *files, world=world, text=SEARCH.replace(*MEDIAN))
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    ends = ("complete  BLEU 30.00 .* 3.0 min  best .*trial 0", "fail .*out of memory", "complete", "pruned at step 20")
    for number, (line, end) in enumerate(zip(lines[1:], ends, strict=False)):
        assert re.match(f"trial {number}  {end}", line)
    assert "tiny-study: 4 complete, 1 pruned, 1 fail" in ended.out
    table = [line.split() for line in lines if re.match(r" +\d", line)]
    assert [row[:3] for row in table] == [[n, "BLEU", f"30.{n}0"] for n in ("5", "4", "2", "0")]
    for name in ("history", "curves", "importance"):
        assert (tmp_path / "pickles" / "tiny-study" / f"{name}.png").read_bytes().startswith(b"\x89PNG")

    best = TranslationConfig.load(tmp_path / "best.yaml")
    (told,) = (line for line in lines if line.startswith("  python train.py"))
    assert read_arguments(shlex.split(told)[2:]).config == best
    written = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    trials = written.pop("trials")
    assert (written["best"], written["score"]) == (5, "bleu")
    assert trials[5]["options"] == {"optimizer.peak_lr": best.optimizer.peak_lr, "model.d_ff": best.model.d_ff}
    assert (best.name, best.training.max_steps, trials[5]["by_step"]["30"]) == ("tiny-best", 30, 30.5)
    assert trials[1]["why"] == "out of memory"


def test_mistakes_and_interruptions_are_told_in_a_line(run: Run, tmp_path: Path) -> None:
    assert "--trials -1" in run("--trials", "-1", text=SEARCH).complaint
    assert "--json" in run("--json", tmp_path / "b", text=SWITCHES).complaint
    assert not (tmp_path / "pickles").exists()
    world = World()
    world.events["tiny-0", 20] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ended = run("--trials", "2", world=world, text=SEARCH)
    assert ended.status == INTERRUPTED
    assert "the same command resumes it" in ended.out.splitlines()[-1]
    assert run("--report", world=world, text=SEARCH).out.splitlines()[-1] == "no trial is complete yet"
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    world.events["tiny-0", 20] = lambda: os.kill(os.getpid(), signal.SIGHUP)
    assert run("--trials", "1", world=world, text=SEARCH).status == 0
    assert len(world.options["tiny-0"]) == 2


def test_an_ablation_writes_a_table_and_a_picture_for_a_report_the_same(
    run: Run, ablation: Ablation, world: World, tmp_path: Path
) -> None:
    write(ablation, SCORES)
    table, picture = (tmp_path / "figure" / f"ablation_tiny.{kind}" for kind in ("md", "png"))
    made = []
    for arguments in ((), ("--report",)):
        ended = run("--folder", tmp_path / "figure", *arguments, text=SWITCHES)
        assert (ended.status, ended.out.splitlines()) == (0, [str(table), str(picture)])
        made.append(table.read_text(encoding="utf-8"))
    assert made[0] == made[1]
    assert not world.options
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "`optimizer.clip_norm` null, `optimizer.betas` [0.5, 0.75]" in made[0]
