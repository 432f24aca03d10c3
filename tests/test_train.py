"""train.py from two text files to a translation, resumed, branched, shared and refused."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
import torch
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import train
from const.corpora import CORPORA
from const.path import ROOT
from evaluate import build_parser as evaluate_parser
from models.transformer import Transformer
from serve import build_parser as serve_parser
from tests.test_resume import timeless
from tests.test_surface import parser_of
from tests.test_training import FAST, FP32, new_trainer, same, weights
from tests.tiny import MODEL, TEXT
from train import Trainer
from translate import build_parser as translate_parser
from utils.arguments import read_arguments
from utils.command import run_command
from utils.config import TranslationConfig
from utils.dataset.corpus import prepare_corpus
from utils.run import load_run
from utils.task import translation
from utils.task.task import Task, architecture, init_from, what_next
from utils.training.checkpoint import CheckpointStore
from utils.training.distributed import Processes
from utils.training.loss import TranslationObjective
from utils.training.optimizer import Optimizer
from utils.training.report import read_log


def run_python(*arguments: str | Path, home: Path, **options: Any) -> subprocess.Popen[str]:
    """A command of the project, whose corpus and pickles lie under `home`."""
    places = {"MIYAKO_CORPUS": str(home / "corpus"), "MIYAKO_PICKLES": str(home / "pickles"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | places,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finished(process: subprocess.Popen[str], status: int = 0) -> str:
    out, err = process.communicate(timeout=600)
    assert process.returncode == status, out + err
    assert "Traceback" not in err
    return out


SETTINGS = """
name: tiny
data: {held_out: 8}
tokenizer: {kind: bpe, vocab_size: 48, joint: false}
model: {d_model: 16, n_heads: 2, d_ff: 32, n_encoder_layers: 1, n_decoder_layers: 1, max_length: 40, tie: target}
batch: {tokens_per_batch: 200, max_tokens: 40}
optimizer: {peak_lr: 0.01, warmup_steps: 10}
training: {max_steps: 6, validate_every: 3, report_every: 2, precision: fp32, device: cpu}
search: {beam_size: 2, max_ratio: 1.0}
"""


def settings(home: Path) -> tuple[str | Path, ...]:
    return "--config", home / "tiny.yaml", "--data.src", home / "my.ja", "--data.tgt", home / "my.en"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two text files, and the run that train.py makes of them."""
    home = tmp_path_factory.mktemp("home")
    (home / "tiny.yaml").write_text(SETTINGS)
    for name, lines in (("my.ja", TEXT.src), ("my.en", TEXT.tgt)):
        (home / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    out = finished(run_python("train.py", *settings(home), home=home))
    (home / "said.txt").write_text(out, encoding="utf-8")
    return home


def newest(folder: Path) -> dict[str, Any]:
    """The newest checkpoint of a run."""
    return CheckpointStore(folder / "checkpoints", 2).load(torch.device("cpu"), print)


def only_run(home: Path) -> Path:
    (folder,) = (home / "pickles").iterdir()
    return folder


def test_two_text_files_become_a_run_folder_that_holds_everything(home: Path) -> None:
    folder = only_run(home)
    assert folder.name.startswith("tiny-")
    names = {file.name for file in folder.iterdir() if not file.name.startswith("events.")}
    assert names == {
        "config.yaml",
        "tokenizer_src.model",
        "tokenizer_tgt.model",
        "model.safetensors",
        ".training",
        "checkpoints",
        "weights",
        "log.jsonl",
        "curve.png",
        "attention.png",
        "test.json",
        "test.txt",
    }
    records = [(record["kind"], record["step"]) for record in timeless(folder / "log.jsonl")]
    assert records == [("train", 2), ("dev", 3), ("train", 4), ("train", 6), ("dev", 6)]
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4, 6]
    assert [event.step for event in events.Scalars("dev/bleu")] == [3, 6]
    for name in ("curve.png", "attention.png"):
        with Image.open(folder / name) as image:
            image.load()
            assert min(image.size) > 100
    assert newest(folder)["progress"]["step"] == 6
    config = load_run(folder, torch.device("cpu")).config
    assert (config.name, config.model.d_model, config.data.src) == ("tiny", 16, home / "my.ja")


def test_the_test_set_is_scored_with_the_best_weights_and_the_runs_own_search(home: Path) -> None:
    folder = only_run(home)
    translations = (folder / "test.txt").read_text(encoding="utf-8").split("\n")[:-1]
    (held_out,) = (home / "corpus").glob("files-*/test.src")
    sources = held_out.read_text(encoding="utf-8").split("\n")[:-1]
    assert len(sources) == 8
    found = load_run(folder, torch.device("cpu")).translator().translate(sources)
    assert [t.text for t in found] == translations
    scores = json.loads((folder / "test.json").read_text(encoding="utf-8"))
    assert "tok:13a" in scores["bleu_signature"]
    resolved = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    assert resolved["data"] | {"src": "my.ja", "tgt": "my.en"} == scores["config"]["data"]
    assert resolved["model"] == scores["config"]["model"]
    assert {"commit", "machine", "finished", "versions"} <= set(scores)
    assert 0 <= scores["bleu"] < 100
    out = (home / "said.txt").read_text(encoding="utf-8")
    assert f"BLEU {scores['bleu']:.2f}" in out
    assert scores["bleu_signature"] in out


def test_what_comes_next_works_as_it_is_printed(home: Path) -> None:
    said = (home / "said.txt").read_text(encoding="utf-8")
    _, _, next_steps = said.partition("What next?\n")
    commands = [shlex.split(line) for line in next_steps.splitlines() if line.startswith("    ")]
    assert [words[1] for words in commands] == [
        "translate.py",
        "translate.py",
        "translate.py",
        "serve.py",
        "evaluate.py",
    ]
    for python, name, *arguments in commands:
        assert Path(python).samefile(sys.executable)
        parser_of(name).parse_args(arguments)
    assert (home / "said.txt").read_text(encoding="utf-8").count(commands[0][-1]) > 2  # a sentence that was shown
    out = finished(run_python(*commands[0][1:], home=home))
    assert out.strip() in (only_run(home) / "test.txt").read_text(encoding="utf-8").split("\n")


def test_translate_finds_the_run_and_repeats_what_its_test_has_found(home: Path) -> None:
    (held_out,) = (home / "corpus").glob("files-*/test.src")
    out = finished(run_python("translate.py", "--input", held_out, home=home))
    assert out == (only_run(home) / "test.txt").read_text(encoding="utf-8")


def test_a_run_goes_on_until_it_is_stopped_and_then_again(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "corpus", tmp_path / "corpus")
    shutil.copytree(home / "pickles", tmp_path / "pickles")
    folder = only_run(tmp_path)
    endless = run_python("train.py", "--resume", "--training.max_steps", "1000000", home=tmp_path)
    patience = time.monotonic() + 300
    while read_log(folder / "log.jsonl")[-1][1]["step"] < 30:
        assert time.monotonic() < patience
        assert endless.poll() is None, endless.communicate()
        time.sleep(0.05)
    endless.send_signal(signal.SIGTERM)
    out = finished(endless, 130)
    assert "Resuming from step 6\n" in out
    assert f"Run folder: {folder}\n" in out
    told = re.search(r"Stopped at step (\d+); resume with: (.+ --resume .+)\n", out)
    assert told is not None
    stopped = int(told[1])
    progress = newest(folder)["progress"]
    assert progress["step"] == stopped >= 30
    assert progress["epoch"] > 0

    python, *command = shlex.split(told[2])
    assert Path(python).samefile(sys.executable)
    out = finished(run_python(*command, "--training.max_steps", str(stopped + 4), home=tmp_path))
    assert f"Resuming from step {stopped:,}\n" in out
    assert newest(folder)["progress"]["step"] == stopped + 4
    steps = [record["step"] for record in timeless(folder / "log.jsonl") if record["kind"] == "train"]
    assert steps == list(range(2, stopped + 5, 2))
    assert len(list(tmp_path.glob("pickles/*"))) == 1


@pytest.mark.slow
def test_a_trunk_of_both_directions_and_its_branch_resume_bit_for_bit(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "corpus", tmp_path / "corpus")

    def again(run: Path, *options: str) -> bool:
        """Whether a run that is resumed from its last checkpoint but one ends as it did."""
        last = max((run / "checkpoints").glob("*.pt"))
        state = newest(run)
        last.unlink()
        finished(run_python("train.py", "--resume", run, *options, home=tmp_path))
        assert last.is_file()
        return same(newest(run), state, {"seconds", "active_seconds"})

    both = ("--data.both_directions", "true", "--tokenizer.tag", "true", "--tokenizer.joint", "true")
    shape = ("--tokenizer.vocab_size", "80", "--model.tie", "all", "--model.positions", "rotary", "--name", "trunk")
    moves = ("--optimizer.kind", "muon", "--optimizer.ema_decay", "0.8", "--optimizer.schedule", "trapezoid")
    waits = (
        "--optimizer.decay_from",
        "1000000",
        "--optimizer.warmup_steps",
        "2",
        "--training.report_every",
        "1",
    )  # longer than the trunk lasts
    finished(run_python("train.py", *settings(home), *both, *shape, *moves, *waits, home=tmp_path))
    trunk = only_run(tmp_path)
    assert again(trunk)
    untouched = {file: file.read_bytes() for file in trunk.rglob("*") if file.is_file()}

    back = ("--data.both_directions", "false", "--data.src_lang", "en", "--data.tgt_lang", "ja")
    files = ("--data.src", home / "my.en", "--data.tgt", home / "my.ja", "--optimizer.decay_steps", "6")
    finished(run_python("train.py", "--branch", trunk, "--name", "done", *back, *files, home=tmp_path))
    assert untouched == {file: file.read_bytes() for file in trunk.rglob("*") if file.is_file()}
    (branch,) = tmp_path.glob("pickles/done-*")
    rates = [record["learning_rate"] for record in timeless(branch / "log.jsonl") if record["kind"] == "train"]
    assert rates == pytest.approx([0.01 * (1 - (n / 6) ** 0.5) for n in range(1, 7)])
    assert again(branch)
    src = load_run(branch, torch.device("cpu")).tokenizers.src
    assert src.tokens(src.encode(["an old temple"])[0])[0] == "<2ja>"


def test_two_processes_are_one(home: Path, tmp_path: Path) -> None:
    """Dropout too: a batch's draws are its own, whichever process learns from it."""
    shutil.copytree(home / "corpus", tmp_path / "corpus")
    batch = ("--batch.accumulate", "2", "--batch.tokens_per_batch", "100", "--training.max_steps", "8")
    moves = ("--optimizer.kind", "muon", "--optimizer.ema_decay", "0.8")
    more = (*batch, *moves, "--training.report_every", "1", "--model.attention_dropout", "0.1")
    finished(run_python("train.py", *settings(home), *more, "--name", "one", home=tmp_path))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    out = finished(run_python(*torchrun, *settings(home), *more, "--name", "two", home=tmp_path))
    assert "by 2 processes" in out
    assert out.count("Run folder") == 1
    one, two = (next(tmp_path.glob(f"pickles/{name}-*")) for name in ("one", "two"))
    assert len(list((tmp_path / "pickles").iterdir())) == 2
    for ours, theirs in zip(timeless(two / "log.jsonl"), timeless(one / "log.jsonl"), strict=True):
        assert (ours["kind"], ours["step"], ours["epoch"]) == (theirs["kind"], theirs["step"], theirs["epoch"])
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        if ours["kind"] == "train":
            assert ours["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-4)
            assert ours["target_tokens"] == theirs["target_tokens"]
    for a, b in zip(newest(one)["net"].values(), newest(two)["net"].values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-3)  # Adam makes steps of noise where a gradient is only noise


@pytest.mark.slow
def test_all_processes_stop_when_one_is_asked_to(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "corpus", tmp_path / "corpus")
    endless = ("--batch.accumulate", "2", "--training.max_steps", "1000000", "--training.validate_every", "1000000")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    process = run_python(*torchrun, *settings(home), *endless, home=tmp_path)
    patience = time.monotonic() + 300
    while not any(read_log(log) for log in tmp_path.glob("pickles/*/log.jsonl")):
        assert time.monotonic() < patience
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (second,) = (pid for pid in children if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
    os.kill(int(second), signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    told = re.search(r"Stopped at step (\d+); resume with", out)
    assert told is not None
    assert newest(only_run(tmp_path))["progress"]["step"] == int(told[1])


def test_processes_that_cannot_share_an_update_are_refused(home: Path) -> None:
    arguments = read_arguments([str(word) for word in settings(home)])
    with pytest.raises(ValueError, match=r"give --batch\.accumulate 4 or a multiple of it"):
        train.train(arguments, Processes(0, 4), torch.device("cpu"))


def test_a_dry_run_says_how_large_it_is_and_leaves_nothing(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "corpus", tmp_path / "corpus")
    out = finished(run_python("train.py", *settings(home), "--dry-run", home=tmp_path))
    assert f"{sum(p.numel() for p in load_run(only_run(home), torch.device('cpu')).model.parameters()):,}" in out
    assert "13 updates" in out
    assert not (tmp_path / "pickles").exists()


def test_a_new_run_begins_with_the_weights_and_the_vocabulary_of_another(home: Path, tmp_path: Path) -> None:
    source = only_run(home)
    other = tmp_path / "other.ja"
    other.write_text("".join(line[::-1] + "\n" for line in TEXT.src), encoding="utf-8")
    more = ("--init-from", source, "--data.src", other, "--optimizer.peak_lr", "1e-12", "--name", "tuned", "--profile")
    out = finished(run_python("train.py", *more, home=tmp_path))
    assert f"Initialised from the weights of {source}" in out
    tuned = only_run(tmp_path)
    assert tuned.name.startswith("tuned-")
    for name in ("tokenizer_src.model", "tokenizer_tgt.model"):
        assert (tuned / name).read_bytes() == (source / name).read_bytes()
    before, after = (load_run(folder, torch.device("cpu")) for folder in (source, tuned))
    assert after.config.data.src == other
    for a, b in zip(before.model.parameters(), after.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    assert (tuned / "trace.json.gz").stat().st_size > 1000


def test_another_architecture_is_named(home: Path) -> None:
    folder = only_run(home)
    config = TranslationConfig.load(folder / "config.yaml")
    other = replace(config, model=replace(config.model, n_heads=4))
    net = Transformer(other.model, 48, 48)
    trainer = Trainer(net, TranslationObjective(), Optimizer(net, FAST), FP32)
    before = weights(trainer)
    task = cast(Task, SimpleNamespace(config=other, sizes={"source": 48, "target": 48}, fingerprint=""))
    differs = r"model\.n_heads is 2 in the checkpoint and 4 in the settings$"
    with pytest.raises(ValueError, match=differs):
        train.resume(trainer, CheckpointStore(folder / "checkpoints", 2), task, print)
    with pytest.raises(ValueError, match=differs):
        init_from(net, folder, other, print)
    assert same(weights(trainer), before, set())


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_checkpoint_from_before_an_option_is_of_its_default(
    tmp_path: Path, positions: Literal["sinusoidal", "learned"]
) -> None:
    trainer = new_trainer()
    config = TranslationConfig(model=replace(MODEL, positions=positions))
    task = cast(Task, SimpleNamespace(config=config, sizes={}, fingerprint=""))
    state = architecture(task) | trainer.state()
    del state["model"]["positions"]
    CheckpointStore(tmp_path, 1).save(state, 1)
    going_on = partial(train.resume, new_trainer(), CheckpointStore(tmp_path, 1), task, print)
    if positions == "sinusoidal":
        going_on()
    else:
        with pytest.raises(ValueError, match=r"model\.positions is sinusoidal in the checkpoint and learned in the"):
            going_on()


def test_a_training_that_goes_on_keeps_what_it_chooses_by(home: Path) -> None:
    folder = only_run(home)
    assert read_arguments(["--resume", str(folder), "--training.select_by", "bleu"]).resume == folder
    told = f"select_by=loss, but the best weights of {folder} were chosen by bleu: give --training.select_by bleu, or"
    with pytest.raises(ValueError, match=re.escape(told)):
        read_arguments(["--resume", str(folder), "--training.select_by", "loss"])
    assert read_arguments(["--init-from", str(folder), "--training.select_by", "loss"]).init_from == folder


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        run_command("train.py", train.main)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    last = err.splitlines()[-1]
    assert last.startswith("train.py: error: ")
    return last


def test_without_a_network_kftt_names_both_ways_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unreachable = replace(CORPORA["kftt"], url="http://127.0.0.1:9/kftt.tar.gz")
    monkeypatch.setitem(CORPORA, "kftt", unreachable)
    monkeypatch.setattr(translation, "prepare_corpus", partial(prepare_corpus, root=tmp_path))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    message = complaint(capsys)
    assert "http://127.0.0.1:9/kftt.tar.gz" in message
    assert "--data.archive" in message
    assert "--config demo" in message
    assert not any(tmp_path.iterdir())


def test_resuming_what_is_not_there_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--resume", str(tmp_path / "nowhere")])
    assert f"no run {tmp_path / 'nowhere'}" in complaint(capsys)


@pytest.mark.parametrize("sentence", ["寺がある", "-5 度", "it's"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_is_proposed_works_as_it_stands(
    sentence: str, elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path if elsewhere else ROOT)
    parsers = {"translate.py": translate_parser(), "serve.py": serve_parser(), "evaluate.py": evaluate_parser()}
    _, *wishes = what_next(Path("pickles/my run"), sentence)
    commands = [shlex.split(wish.split("\n")[1]) for wish in wishes]
    assert all(Path(python).is_file() and Path(program).is_file() for python, program, *_ in commands)
    asked = [parsers[Path(program).name].parse_args(words) for _, program, *words in commands]
    assert [translation.texts for translation in asked[:3]] == [[sentence], [sentence], []]
    assert [translation.run for translation in asked[:3]] == [["pickles/my run"]] * 3
    assert len(asked) == 5
