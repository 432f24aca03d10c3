"""study.py with a `space`: what is trained, given up, resumed, shared and reported; and `train.py` watched."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from PIL import Image

import study as command
from bench.faults import TinyTraining
from const.path import ROOT
from tests.fake_training import KilledError, World, raising
from tests.outcome import Outcome, outcome
from tests.strict import no_warning
from utils.arguments import read_arguments
from utils.command import INTERRUPTED
from utils.config import TranslationConfig
from utils.experiment import study as study_module
from utils.experiment.study import Choices, Range, Study, StudyConfig
from utils.experiment.trial import BusyError, TrainingProcess, parsed, run_named
from utils.training.report import LOG, read_log

pytestmark = no_warning
TEXT = """
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


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Any]:
    """Read the file above, with some of its text replaced."""

    def read_text(*changes: tuple[str, str], text: str = TEXT) -> Any:
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "my.yaml").write_text(text, encoding="utf-8")
        return command.load(tmp_path / "my.yaml")

    return read_text


@pytest.fixture
def start(read: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Study]:
    """Start or resume the study in a world of trainings that take no time."""

    def started(world: World, *changes: tuple[str, str], root: str = "pickles") -> Study:
        monkeypatch.setattr(study_module, "TrainingProcess", world.training)
        monkeypatch.setattr(StudyConfig, "check", lambda _: None)  # it takes a second, and has tests of its own
        return Study(read(*changes), tmp_path / root)

    return started


Start = Callable[..., Study]
MEDIAN = ("pruner: none", "pruner: {startup_trials: 2, warmup_steps: 20}")


def drawn(trials: list[FrozenTrial]) -> list[dict[str, Any]]:
    return [trial.params for trial in trials]


def states(trials: list[FrozenTrial]) -> list[str]:
    return [trial.state.name for trial in trials]


# The file.


@pytest.mark.parametrize("path", sorted((ROOT / "const" / "study").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_studies_of_the_project_are_understood(path: Path) -> None:
    command.load(path)
    assert f"study.py const/study/{path.name}" in path.read_text(encoding="utf-8").partition("name:")[0]


def test_the_study_of_the_guide_is_understood(read: Callable[..., Any]) -> None:
    guide = (ROOT / "docs" / "nlp100.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", guide, re.S | re.M)
    assert read(text=text).domains["optimizer.peak_lr"] == Range(0.0005, 0.005, log=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: tiny", "nam: tiny", "unknown key nam: did you mean name"),
        ("name: tiny", "name: ../tiny", r"name=\.\./tiny: give letters"),
        ("name: tiny", "name:", "name"),
        ("preset/demo", "preset/dem", "did you mean demo"),
        ("max_steps: 30", "max_step: 30", "did you mean --training.max_steps"),
        ("training.max_steps: 30", "name: other", "name is not a setting"),
        ("training.max_steps: 30", "model.d_ff: 16", "model.d_ff is not for options: give its range"),
        ("model.d_ff:", "model.dff:", r"space\.model\.dff, 16: .*did you mean --model.d_ff"),
        ("model.d_ff:", "training.select_by:", "training.select_by .*give score"),
        ("[16, 32]", "[16, 32.5]", r"space\.model\.d_ff, 32\.5: "),
        ("low: 1e-3, high: 0.1, log: true", "low: -1.0, high: 0.01", r"space\.optimizer\.peak_lr, -1\.0: peak_lr=-1"),
        ("pruner: none", "pruner: medain", "medain"),
        ("pruner: none", "pruner: {kind: median, warmup: 3}", "warmup"),
        ("pruner: none", "pruner: 3", "pruner"),
        ("sampler: {startup_trials: 3}", "sampler: [3]", r"\[3\] is no group of settings"),
        ("score: bleu", "score: blue", "blue"),
        ("seed: 1", "seed: -1", "seed=-1: give 0"),
        ("{training.max_steps: 30}", "[training.max_steps]", "options"),
        ("model.d_ff:", "1:", "line 7: the key 1 is not a string"),
        (TEXT, "- tiny\n", "no study: give a name"),
        ("space:", "switches: {}\nspace:", "either a space, or switches"),
        (TEXT, TEXT + "switches: {a: {b: {model.d_ff: 3}}}", "either a space, or switches"),
        ("score: bleu", "score: loss\noptions: {}", "twice"),
        ("model.d_ff: {choices: [16, 32]}\n", "tokenizer.vocab_size: {choices: [300, 400]}\nscore: loss\n", "twice"),
        ("0.1, log", "0.1, lgo", r"space\.optimizer\.peak_lr: unknown key lgo: did you mean"),
        ("low: 1e-3, ", "", r"space\.optimizer\.peak_lr: .*low"),
        ("low: 1e-3", "low: a", r"space\.optimizer\.peak_lr: .*low.*: a"),
        ("low: 1e-3", "low: 0.2", r"high=0\.1 is not above low=0\.2"),
        ("low: 1e-3", "low: 0.0", r"space\.optimizer\.peak_lr: .*low"),
        ("log: true", "log: true, step: 0.01", r"space\.optimizer\.peak_lr: "),
        ("low: 1e-3, high: 0.1, log: true", "low: 0.0, high: 1.0, step: 0.3", "whole number of steps"),
        ("low: 1e-3, high: 0.1, log: true", "low: 0, high: 1, step: 0.5", "step=0.5 of whole numbers"),
        ("low: 1e-3, high: 0.1, log: true", "low: 0, high: 1, step: 0", "steps=1 above 0"),
        ("{choices: [16, 32]}", "{choices: relu}", r"space\.model\.d_ff: .*choices"),
        ("{choices: [16, 32]}", "{choices: [16, 16]}", "give at least two"),
        ("{choices: [16, 32]}", "{choices: [16]}", "give at least two"),
        ("{choices: [16, 32]}", "16", r"space\.model\.d_ff: 16 is no group"),
    ],
)
def test_a_mistake_is_a_line_that_names_it(read: Callable[..., Any], old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"my\.yaml: .*{message}") as caught:
        read((old, new))
    assert "\n" not in str(caught.value)


def test_only_what_is_comparable_is_compared(read: Callable[..., Any]) -> None:
    """A loss is per token, and a pruner compares after equally many updates."""
    sizes = ("model.d_ff: {choices: [16, 32]}", "tokenizer.vocab_size: {choices: [300, 400]}")
    assert read(sizes).scored == "bleu"
    with pytest.raises(ValueError, match="give score: bleu"):
        read(sizes, ("score: bleu", "score: loss"))
    batches = ("model.d_ff:", "batch.accumulate:")
    assert read(batches).pruner.kind == "none"
    with pytest.raises(ValueError, match="changes the size of an update: give pruner: none"):
        read(batches, ("pruner: none", "pruner:"))


def draw_from(given: dict[str, Any], n: int = 100) -> list[Any]:
    domain: Any = parsed(Choices if "choices" in given else Range, given)
    sampled = optuna.create_study(sampler=optuna.samplers.RandomSampler(1))
    return [domain.value(sampled.ask({"x": domain.distribution}).params["x"]) for _ in range(n)]


def test_ranges_are_drawn_as_they_are_meant() -> None:
    assert set(draw_from({"low": 2, "high": 5})) == {2, 3, 4, 5}
    assert set(draw_from({"low": 2, "high": 6, "step": 2})) == {2, 4, 6}
    assert {round(value, 9) for value in draw_from({"low": 0.1, "high": 0.4, "step": 0.1})} == {0.1, 0.2, 0.3, 0.4}
    assert any(value % 1 for value in draw_from({"low": 2.0, "high": 5}))
    assert 30 < sum(value < 1e-3 for value in draw_from({"low": "1e-4", "high": 1e-2, "log": True})) < 70
    values = [True, None, "relu", 3, 0.5, [1, 2]]
    assert sorted(map(repr, {repr(value): value for value in draw_from({"choices": values})}.values())) == sorted(
        map(repr, values)
    )


# The search.


def test_a_trial_trains_with_what_it_has_drawn_and_is_worth_its_best_validation(start: Start) -> None:
    world = World(lambda at: {10: 5.0, 20: 8.0, 30: 7.0}[at.step])
    (trial,) = start(world).search(1)
    (options,) = world.options["tiny-0"]
    assert float(options.pop("optimizer.peak_lr")) == trial.params["optimizer.peak_lr"]
    expected = {"training.select_by": "bleu", "training.max_steps": "30", "model.d_ff": trial.params["model.d_ff"]}
    assert options == expected
    assert (trial.value, trial.intermediate_values) == (8, {10: 5, 20: 8, 30: 7})
    assert trial.user_attrs["minutes"] == 3


def test_the_highest_score_or_the_lowest_loss_is_the_best_and_a_repeated_command_adds_nothing(start: Start) -> None:
    world = World(lambda at: at.step * at.rate)
    assert len(list(start(world).search(4))) == 4
    scored = start(world)
    rates = [trial.params["optimizer.peak_lr"] for trial in scored.ranked()]
    assert rates == sorted(rates, reverse=True)
    assert list(scored.search(4)) == list(scored.search(0)) == []
    assert [trial.number for trial in scored.search(5)] == [4]
    lost = start(World(world.score, field="loss"), ("score: bleu", "score: loss"), ("name: tiny", "name: lost"))
    list(lost.search(4))
    rates = [trial.params["optimizer.peak_lr"] for trial in lost.ranked()]
    assert rates == sorted(rates)
    assert lost.ranked()[0].value == pytest.approx(10 * rates[0])
    assert lost.optuna.direction.name == "MINIMIZE"


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), KilledError()], ids=["Ctrl-C", "kill"])
def test_an_interrupted_trial_is_resumed_as_if_nothing_had_been(start: Start, stop: BaseException) -> None:
    expected = list(start(World(lambda at: at.step * at.rate), MEDIAN, root="undisturbed").search(5))
    world = World(lambda at: at.step * at.rate)
    found: list[FrozenTrial] = []
    for disturbed, step in (("tiny-1", 20), ("tiny-4", 10)):
        world.events[disturbed, step] = raising(stop)
        with pytest.raises(type(stop)):
            found.extend(start(world, MEDIAN).search(5))
    found += start(world, MEDIAN).search(5)
    assert [trial.number for trial in found] == list(range(5))
    assert drawn(found) == drawn(expected)
    assert states(found) == states(expected)
    assert [trial.intermediate_values for trial in found] == [trial.intermediate_values for trial in expected]
    assert world.options["tiny-1"][0] == world.options["tiny-1"][1]
    assert len(world.options["tiny-0"]) == 1


def test_what_is_worse_than_the_median_is_given_up(start: Start) -> None:
    world = World(lambda at: at.step - 8.0 * (at.number in (2, 3)))
    trials = list(start(world, MEDIAN).search(5))
    assert states(trials) == ["COMPLETE", "COMPLETE", "PRUNED", "PRUNED", "COMPLETE"]
    assert world.stopped == ["tiny-2", "tiny-3"]
    assert trials[2].intermediate_values == {10: 2, 20: 12}  # before 20 updates nothing is given up


def test_failures_are_remembered_until_three_in_a_row(start: Start) -> None:
    world = World(lambda at: None if at.number == 6 else 1.0)
    for number in (1, 2, 4, 5):
        world.events[f"tiny-{number}", 20] = raising(ValueError(f"no memory for {number}"))
    found: list[FrozenTrial] = []
    with pytest.raises(ValueError, match="3 trials in a row failed"):
        found.extend(start(world).search(9))
    found = start(world).trials()
    assert states(found) == ["COMPLETE", *["FAIL"] * 2, "COMPLETE", *["FAIL"] * 3]
    assert [found[number].user_attrs["why"] for number in (1, 6)] == [
        "no memory for 1",
        "no validation has a finite bleu",
    ]
    assert not world.held


def test_two_processes_share_a_study(start: Start) -> None:
    """Neither trains what the other one does, nor draws the same, though both began with one seed."""
    alone = drawn(list(start(World(), root="alone").search(4)))
    world, theirs = World(), list[FrozenTrial]()
    world.events["tiny-0", 20] = lambda: theirs.extend(islice(start(world).search(4), 2))
    ours = list(start(world).search(4))
    assert [[trial.number for trial in trials] for trials in (theirs, ours)] == [[1, 2], [0, 3]]
    assert drawn([ours[0], *theirs, ours[1]]) == alone
    assert len({str(params) for params in alone}) == 4
    assert drawn(list(start(World(), ("seed: 1", "seed: 2"), root="other").search(1))) != alone[:1]


def test_who_comes_last_waits_for_the_others(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is killed at last, and its trial is resumed."""
    world, looks = World(), list[float]()
    world.events["tiny-0", 20] = raising(KilledError())
    with pytest.raises(KilledError):
        list(start(world).search(1))
    world.held.add("tiny-0")

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            world.held.clear()

    monkeypatch.setattr(time, "sleep", sleep)
    (trial,) = start(world).search(1)
    assert (trial.number, trial.state, len(looks)) == (0, TrialState.COMPLETE, 3)


def test_what_a_crash_leaves_half_written_is_noticed(start: Start, tmp_path: Path) -> None:
    """A trial that was not drawn whole, a line of the journal without its end, runs without a journal."""
    begun, world = start(World()), World()
    begun.optuna.ask({"model.d_ff": begun.config.domains["model.d_ff"].distribution})
    (trial,) = start(world).search(1)
    assert trial.number == 1
    assert states(begun.trials()) == ["FAIL", "COMPLETE"]
    assert study_module.trial_line(begun, begun.trials()[0]).endswith("stopped while drawing its settings")
    journal = tmp_path / "pickles" / "tiny-study" / "journal.log"
    with journal.open("ab") as file:
        file.write(b'{"op_code":5,"worker')
    assert [trial.number for trial in start(world).search(2)] == [2]
    journal.unlink()
    (journal.parent / "runs" / "tiny-0").mkdir(parents=True)
    with pytest.raises(ValueError, match="the journal knows nothing: remove"):
        start(world)


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("  model.d_ff: {choices: [16, 32]}\n", "", r"space\.model\.d_ff\.choices was .* and is absent"),
        ("high: 0.1", "high: 0.2", r"space\.optimizer\.peak_lr\.high was 0\.1 and is 0\.2"),
        ("max_steps: 30", "max_steps: 60", r"options\.training\.max_steps was 30 and is 60"),
        ("score: bleu", "score: chrf", "score was bleu and is chrf"),
        ("preset/demo", "preset/tanaka_ja_en", r"preset\.name was demo and is tanaka_ja_en"),
    ],
)
def test_only_studies_of_the_same_settings_share_trials(start: Start, old: str, new: str, difference: str) -> None:
    start(World())
    with pytest.raises(ValueError, match=f"tiny was started with other settings: {difference}: rename"):
        start(World(), (old, new))
    start(World(), ("seed: 1", "seed: 7"), MEDIAN)


# The command.


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Outcome]]:
    """Run study.py in this process, in a world of trainings that take no time."""

    def run_it(*arguments: str | Path, world: World, text: str = TEXT) -> Outcome:
        (tmp_path / "my.yaml").write_text(text, encoding="utf-8")
        monkeypatch.setattr(study_module, "TrainingProcess", world.training)
        monkeypatch.setattr(command, "Study", lambda config: Study(config, tmp_path / "pickles"))
        monkeypatch.setattr(sys, "argv", ["study.py", str(tmp_path / "my.yaml"), *map(str, arguments)])
        return outcome("study.py", command.main, capsys)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield run_it
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_line_for_each_trial_a_table_pictures_and_files(run: Callable[..., Outcome], tmp_path: Path) -> None:
    world = World(lambda at: at.step + at.number / 10 - 9.0 * (at.number == 3))
    world.events["tiny-1", 20] = raising(ValueError("out of memory"))
    text = TEXT.replace(*MEDIAN)
    files = ("--best", tmp_path / "best.yaml", "--json", tmp_path / "all.json")
    ended = run("--trials", "5", *files, world=world, text=text)
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == f"{tmp_path / 'pickles' / 'tiny-study'}: 0 of 5 trials are finished"
    patterns = (
        "complete  BLEU 30.00 .* 3.0 min  best BLEU 30.00 .trial 0",
        "failed .*out of memory",
        "complete",
        "pruned at step 20",
    )
    for number, (line, pattern) in enumerate(zip(lines[1:], patterns, strict=False)):
        assert re.match(f"trial {number}  {pattern}", line)
    assert "tiny-study: 4 complete, 1 pruned, 1 fail" in ended.out
    table = [line.split() for line in lines if re.match(r" +\d", line)]
    assert [row[:3] for row in table] == [[n, "BLEU", f"30.{n}0"] for n in ("5", "4", "2", "0")]
    for name in ("history", "curves", "importance"):
        assert name in lines[-2]
        assert Image.open(tmp_path / "pickles" / "tiny-study" / f"{name}.png").width > 300

    best = TranslationConfig.load(tmp_path / "best.yaml")
    (told,) = (line for line in lines if line.startswith("  python train.py"))
    assert read_arguments(shlex.split(told)[2:]).config == best
    written = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    trials = written.pop("trials")
    assert (written["best"], written["score"], set(written["importance"])) == (5, "bleu", set(trials[5]["options"]))
    assert trials[5]["options"] == {"optimizer.peak_lr": best.optimizer.peak_lr, "model.d_ff": best.model.d_ff}
    assert (best.name, best.training.max_steps, trials[5]["by_step"]["30"]) == ("tiny-best", 30, 30.5)
    assert trials[1]["why"] == "out of memory"

    again = run("--trials", "5", "--report", world=world, text=text)
    assert again.out.splitlines()[1:] == lines[7:-1]


def test_mistakes_and_interruptions_are_told_in_a_line(run: Callable[..., Outcome], tmp_path: Path) -> None:
    assert "--trials -1: give 0 or more" in run("--trials", "-1", world=World()).complaint
    assert not (tmp_path / "pickles").exists()
    world = World()
    world.events["tiny-0", 20] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ended = run("--trials", "2", world=world)
    assert ended.status == INTERRUPTED
    assert "the same command resumes it" in ended.out.splitlines()[-1]
    assert run("--report", world=world).out.splitlines()[-1] == "no trial is complete yet"
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    world.events["tiny-0", 20] = lambda: os.kill(os.getpid(), signal.SIGHUP)
    assert run("--trials", "2", world=world).status == 0
    assert len(world.options["tiny-0"]) == 2


# A real training, watched.

SETTINGS = """
data: {held_out: 8}
tokenizer: {kind: bpe, vocab_size: 48, joint: false}
model: {d_model: 16, n_heads: 2, d_ff: 32, n_encoder_layers: 1, n_decoder_layers: 1, max_length: 40, tie: target}
batch: {tokens_per_batch: 200, max_tokens: 40}
training: {max_steps: 6, validate_every: 3, report_every: 2, precision: fp32, device: cpu}
search: {beam_size: 2, max_ratio: 1.0}
"""
ENDLESS = ("--training.max_steps", "1000000", "--training.max_epochs", "1000000")


def training(home: Path, *options: str) -> TrainingProcess:
    tiny = TinyTraining(home, SETTINGS)
    files = ["--data.src", str(home / "my.ja"), "--data.tgt", str(home / "my.en")]
    options = ("--config", str(tiny.folder / "faults.yaml"), *files, *options)
    return TrainingProcess("trial-7", options, home / "study", home / "pickles")


@pytest.fixture
def one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIYAKO_CORPUS", str(tmp_path / "corpus"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
def test_one_process_trains_the_next_resumes_and_failures_say_why(tmp_path: Path) -> None:
    with training(tmp_path, *ENDLESS) as first:
        with pytest.raises(BusyError, match="trial-7"), training(tmp_path):
            pass
        assert first._process is not None
        assert os.getpgid(first._process.pid) != os.getpgid(0)  # Ctrl-C is for whoever began it
        assert next(iter(first.validations()))["step"] == 3
        first.stop()
    assert first.run is not None
    before = [record["step"] for _, record in read_log(first.run / LOG) if record["kind"] == "dev"]
    with training(tmp_path) as second:
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
    assert "Resuming from step" in second.output.read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
def test_an_ended_training_is_not_trained_again_and_a_mistake_is_told(tmp_path: Path) -> None:
    with training(tmp_path / "one") as first:
        validations = list(first.validations())
    assert [record["step"] for record in validations] == [3, 6]
    output = first.output.read_text()
    with training(tmp_path / "one") as second:
        assert list(second.validations()) == validations
    assert second.output.read_text() == output
    with (
        training(tmp_path / "other", "--model.n_heads", "3") as failing,
        pytest.raises(ValueError, match=r"trial-7 failed: train.py: error: .*n_heads=3.*trial-7\.log"),
    ):
        list(failing.validations())


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
def test_an_orphan_keeps_its_run(tmp_path: Path) -> None:
    """Whoever began the training is killed; the training lives, and so does its lock."""
    options = training(tmp_path, *ENDLESS)._options
    program = (
        "import os, signal, sys; from pathlib import Path; from utils.experiment.trial import TrainingProcess;"
        f"training = TrainingProcess('trial-7', {list(options)!r}, Path({str(tmp_path / 'study')!r}), "
        f"Path({str(tmp_path / 'pickles')!r})).__enter__(); print(training._process.pid, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    try:
        with pytest.raises(BusyError), training(tmp_path):
            pass
    finally:
        os.kill(int(parent.stdout), signal.SIGKILL)


def standing_for(program: str, home: Path) -> TrainingProcess:
    """A training that has begun, with a small program in the place of train.py."""
    begun = TrainingProcess("trial-7", [], home / "study", home / "pickles")
    begun.output.parent.mkdir(exist_ok=True)
    begun.output.write_text("earlier output\n")
    begun._resumed_at = begun.output.stat().st_size
    begun._process = subprocess.Popen(["bash", "-c", program])
    return begun


@pytest.mark.parametrize("program", ["exit 130", "exit 143", "kill -INT $$; sleep 9", "kill -TERM $$"])
def test_what_somebody_else_has_stopped_has_not_failed(tmp_path: Path, program: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        list(standing_for(program, tmp_path).validations())


def test_who_says_nothing_has_a_status_and_who_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"^the training trial-7 failed: exit status 3 "):
        list(standing_for("exit 3", tmp_path).validations())
    monkeypatch.setattr("utils.experiment.trial.PATIENCE", 0.5)
    deaf = standing_for("trap '' TERM; while true; do sleep 0.05; done", tmp_path)
    time.sleep(0.5)
    deaf.stop()
    assert deaf._process is not None
    assert deaf._process.returncode == -signal.SIGKILL
    deaf.stop()


def test_a_run_is_known_by_its_whole_name_once_it_has_saved(tmp_path: Path) -> None:
    for name in ("trial-1-20260101-000000", "trial-1-20260102-000000-2", "trial-11-20260103-000000", "trial-1"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "checkpoints" / "step-00000001.pt").touch()
    (tmp_path / "trial-1-20260105-000000" / "checkpoints").mkdir(parents=True)
    (tmp_path / "trial-1-20260105-000000" / "checkpoints" / ".step-00000001.pt.7.part").touch()  # killed while saving
    found = run_named("trial-1", tmp_path)
    assert found is not None
    assert found.name == "trial-1-20260102-000000-2"
    assert run_named("trial-2", tmp_path) is None
