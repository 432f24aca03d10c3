"""train.py from text files to a translator and to what the other tasks make; resumed, branched, shared and refused."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.testing import assert_close

import train
import translate
from config.data import DataConfig, LabelledConfig, MonolingualConfig
from config.search import SearchConfig
from config.training import OptimizerConfig, Precision, TranslationTrainingConfig
from const.path import ROOT
from const.token import UNK_ID
from models.recurrent import RecurrentTranslator
from models.transformer import Transformer
from tests.samples import page_data
from tests.test_resume import timeless
from tests.test_surface import parser_of
from tests.test_training import FAST, FP32, new_sampler, new_trainer, same, weights
from tests.tiny import MODEL, TEXT, outcome
from train import Trainer
from utils.arguments import read_arguments
from utils.config import ClassificationConfig, LanguageConfig, MaskedLanguageConfig, TranslationConfig
from utils.load import build_network, load_bert, load_classifier, load_run
from utils.run import read_config
from utils.search.forced import token_log_probs
from utils.task.task import Task, init_from, prepare, settle_precision
from utils.task.translation import TranslationTask, what_next
from utils.text.tokenizer import every_token, id_of_each, load_tokenizers, train_tokenizers
from utils.training.checkpoint import CheckpointStore, read_weights
from utils.training.distributed import Processes
from utils.training.loss import TranslationObjective
from utils.training.optimizer import Optimizer
from utils.training.report import read_log
from utils.training.schedule import learning_rate

CPU = torch.device("cpu")


def environment(home: Path) -> dict[str, str]:
    places = {"MIYAKO_CORPUS": str(home / "corpus"), "MIYAKO_PICKLES": str(home / "pickles"), "OMP_NUM_THREADS": "1"}
    return os.environ | places


def run_python(*arguments: str | Path, home: Path, **options: Any) -> subprocess.Popen[str]:
    """A command of the project, whose corpus and pickles lie under `home`."""
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=environment(home),
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
# All in one process, as each one takes seconds to import torch. A word @NAME is the run of that name. Pictures, which
# take long, are drawn at the end of `tiny` alone, and fail in `kinds`. `stopped` is a copy of `tiny` that goes on until
# SIGTERM comes at step 16, in its second epoch; `asked` is begun and not begun at a terminal.
RUN = """
import io
import os
import runpy
import shutil
import signal
import sys
import train
from const.path import PICKLES, ROOT
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import Mock, patch
from utils.command import run_command
from utils.task import translation
from utils.training.report import JsonlLog

def draw_curves(picture, progress, validation, draw=train.CurvePicture.on_validation):
    assert "kinds-" not in str(picture._picture), "no font"
    if "tiny-" in str(picture._picture) and progress.step == 6:
        draw(picture, progress, validation)

def draw_attention(*given, draw=translation.draw_cross_attention):
    if "tiny-" in str(given[-1]):
        draw(*given)

train.CurvePicture.on_validation, translation.draw_cross_attention = draw_curves, draw_attention

def run(*argv):
    sys.argv = ["train.py", *(str(*PICKLES.glob(word[1:] + "-*")) if word[0] == "@" else word for word in argv)]
    train.main()

for argv in {commands!r}:
    run(*argv)
(bert,) = PICKLES.glob("bert-*")
away = bert.rename(PICKLES / "away")
run("--resume", "@translator", "--training.max_steps", "5", "--training.bleu_sentences", "3")
away.rename(bert)
scores, translation.translation_scores = translation.translation_scores, Mock(side_effect=ValueError("no words"))
try:
    run(*{commands!r}[0], "--name", "unscored", "--training.watch", "3")
except ValueError as error:
    print("refused:", error)
translation.translation_scores = scores
run("--resume", "@unscored")

def killed_at_16(log, progress, report, write=JsonlLog.on_step):
    write(log, progress, report)
    if progress.step == 16:
        os.kill(os.getpid(), signal.SIGTERM)

def ended(name, command, shown):
    with redirect_stdout(shown), redirect_stderr(shown):
        try:
            command()
        except SystemExit as end:
            print("status", end.code)
    Path({home!r}, name + ".txt").write_text(shown.getvalue(), encoding="utf-8")

(tiny,) = PICKLES.glob("tiny-*")
shutil.copytree(tiny, PICKLES / "stopped")
bounds = "--training.max_steps 2000 --training.validate_every 2000".split()
sys.argv = ["train.py", "--resume", str(PICKLES / "stopped"), *bounds]
with patch.object(JsonlLog, "on_step", killed_at_16):
    ended("stopped", lambda: runpy.run_path(str(ROOT / "train.py"), run_name="__main__"), io.StringIO())

class Terminal(io.StringIO):
    def isatty(self):
        return True

def ask():
    new = [*{commands!r}[0], "--name", "asked"]
    for argv in (new, [*new, "--dry-run"], ["--resume", "@asked", "--training.max_steps", "7"]):
        run(*argv)
    run_command("train.py", lambda: run(*new))

train.LONG_FOR_A_CPU, sys.stdin = 0, Terminal("y\\n\\n")
ended("asked", ask, Terminal())
"""


def settings(home: Path) -> tuple[str, ...]:
    return "--config", f"{home}/tiny.yaml", "--data.src", f"{home}/my.ja", "--data.tgt", f"{home}/my.en"


def commands(home: Path) -> list[list[str]]:
    """Translators; a Transformer-XL, resumed; a BERT; a classifier and a translator that begin with it."""
    small = "--model.d_model 16 --model.n_heads 2 --model.d_ff 32"
    common = """--tokenizer.kind bpe --tokenizer.vocab_size 48 --optimizer.warmup_steps 1 --training.max_steps 4
        --training.validate_every 2 --training.report_every 1 --training.precision fp32 --training.device cpu"""
    texts = f"{small} --model.n_layers 2 --data.text @@my.ja --data.documents @@docs --data.held_out 12"
    bounded = "--batch.max_tokens 40 --batch.tokens_per_batch 200"
    logged = "--training.max_steps 5"  # enough for a line that says where the training is
    still = "--optimizer.peak_lr 1e-12"  # begins with other weights, and leaves them as they are
    files = " ".join(f"--data.{split}text @@my.ja --data.{split}labels @@labels" for split in ("", "dev_", "test_"))
    lines = [
        f"""--task language --name xl --model.memory_length 8 --optimizer.schedule cosine {texts} --batch.n_streams 2
        --batch.segment_length 8 --batch.accumulate 2 {common}""",
        "--resume @xl --training.max_steps 6 --batch.n_streams 3",
        f"--task masked_language --name bert {texts} --model.max_length 40 {bounded} {common} {logged}",
        f"""--task classification --name kinds {files} --training.select_by accuracy {bounded} {still} {common} {logged}
        --model.init-encoder @bert""",
        f"""--task translation --name translator --data.src @@my.ja --data.tgt @@my.en --data.held_out 10
        --tokenizer.joint false {small} --model.tie target --model.n_encoder_layers 0 --model.n_decoder_layers 1
        --training.bleu_sentences 4 {bounded} {still} {common} --model.init-encoder @bert""",
        f"""--task recurrent_translation --name recurrent --data.src @@my.ja --data.tgt @@my.en --data.held_out 10
        --tokenizer.joint false --model.d_model 16 --model.d_hidden 24 --model.tie target {bounded} {common}
        --optimizer.ema_decay 0.9 --checkpoint.average_last 1 --training.watch 2""",
        "--resume @recurrent --training.max_steps 6",
    ]
    given = [[str(home / word[2:]) if word[:2] == "@@" else word for word in line.split()] for line in lines]
    tuned = ["--init-from", "@tiny", "--optimizer.peak_lr", "1e-12", "--name", "tuned", "--data.src"]
    return [[*settings(home)], [*settings(home), "--dry-run"], [*tuned, str(home / "other.ja")], *given]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, and what train.py makes of them; the translator was resumed while its BERT was not there."""
    home = tmp_path_factory.mktemp("home of 都")
    texts = {
        "tiny.yaml": [SETTINGS],
        "my.ja": TEXT.src,
        "my.en": TEXT.tgt,
        "other.ja": [line[::-1] for line in TEXT.src],
        "labels": [line.split()[3] for line in TEXT.tgt],
        "docs": [f"D{i} 10" for i in range(12)],
    }
    for name, lines in texts.items():
        (home / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    out = finished(run_python("-c", RUN.format(commands=commands(home), home=str(home)), home=home))
    (home / "said.txt").write_text(out, encoding="utf-8")
    return home


def newest(folder: Path) -> dict[str, Any]:
    """The newest checkpoint of a run."""
    return CheckpointStore(folder / "checkpoints", 2).load(CPU, print)


def run(home: Path, name: str = "tiny") -> Path:
    (folder,) = (home / "pickles").glob(f"{name}-*")
    return folder


def said(home: Path, name: str = "said") -> str:
    return (home / f"{name}.txt").read_text(encoding="utf-8")


def test_two_text_files_become_a_run_folder_that_holds_everything(home: Path) -> None:
    folder = run(home)
    assert folder.name.startswith("tiny-")
    names = {file.name for file in folder.iterdir() if not file.name.startswith("events.")}
    made = "config.yaml tokenizer_src.model tokenizer_tgt.model model.safetensors log.jsonl test.json test.txt"
    assert names == {*made.split(), ".training", "checkpoints", "weights", "curve.png", "attention.png"}
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
    config = load_run(folder, CPU).config
    assert (config.name, config.model.d_model, config.data.src) == ("tiny", 16, home / "my.ja")


def test_the_test_set_is_scored_with_the_best_weights_and_the_runs_own_search(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("utils.text.loop.OFTEN", 2)  # as in the training, a process of its own
    folder = run(home)
    translations = (folder / "test.txt").read_text(encoding="utf-8").split("\n")[:-1]
    texts = [file.read_text(encoding="utf-8").splitlines() for file in (home / "corpus").glob("files-*/test.src")]
    sources = next(text for text in texts if len(text) == 8 and text[0] in TEXT.src)
    assert [translation.text for translation in load_run(folder, CPU).translator().translate(sources)] == translations
    scores = json.loads((folder / "test.json").read_text(encoding="utf-8"))
    assert "tok:13a" in scores["bleu_signature"]
    resolved = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    assert resolved["data"] | {"src": "my.ja", "tgt": "my.en"} == scores["config"]["data"]
    assert resolved["model"] == scores["config"]["model"]
    assert {"commit", "machine", "finished", "versions"} <= set(scores)
    assert f"BLEU {scores['bleu']:.2f}" in said(home)
    assert scores["bleu_signature"] in said(home)


def test_what_could_not_be_scored_is_not_lost_and_is_scored_when_it_goes_on(home: Path) -> None:
    unscored = run(home, "unscored")
    assert re.search(r"\nStopped at step 3; resume with: .* --resume .*unscored-.*\nrefused: no words\n", said(home))
    assert timeless(unscored / "log.jsonl") == timeless(run(home) / "log.jsonl")


@pytest.mark.parametrize(("n_skipped", "n_saved"), [(0, 1), (9, 0)])
def test_what_could_not_be_scored_is_not_kept_where_it_would_fail_again(
    n_skipped: int, n_saved: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text("name: x\n")
    keeper, trainer, task = Mock(), Mock(), Mock(observers=Mock(return_value=[]))
    task.validation.return_value = ([], Mock())
    trainer.fit.side_effect, trainer.progress.step = ValueError("no finite numbers"), 3
    trainer.optimizer.skipped = trainer.optimizer.skipped_in_a_row = torch.tensor(n_skipped)
    for name in ("WeightStore", "Terminal", "JsonlLog"):
        monkeypatch.setattr(train, name, Mock())
    monkeypatch.setattr(train, "CheckpointKeeper", Mock(return_value=keeper))
    with pytest.raises(ValueError, match="no finite numbers"):
        train.fit_and_save(trainer, task, tmp_path, Mock(), 1, False)
    assert keeper.save.call_count == n_saved


def test_watching_goes_on_where_it_was_stopped_and_leaves_the_weights_as_they_are(home: Path) -> None:
    alone, watched = run(home), run(home, "unscored")
    assert same(newest(watched)["net"], newest(alone)["net"], set())
    best, theirs = (read_weights(folder / "model.safetensors") for folder in (watched, alone))
    assert same(best, theirs, set())
    frames = timeless(watched / "watch.jsonl")
    assert [frame["step"] for frame in frames] == [0, 3, 6]  # before the first update, and at each validation
    scored = [record for record in timeless(alone / "log.jsonl") if record["kind"] == "dev"]
    for frame, record in zip(frames[1:], scored, strict=True):
        assert (frame["loss"], frame["bleu"]) == (record["loss"], record["bleu"])
    assert len({tuple(sentence["source"] for sentence in frame["sentences"]) for frame in frames}) == 1
    assert [len(frame["sentences"]) for frame in frames] == [3, 3, 3]
    page = page_data(watched / "watch.html")
    assert [frame["sentences"] for frame in page["frames"]] == [frame["sentences"] for frame in frames]
    assert f"open in a browser\n    {watched / 'watch.html'}\n" in said(home)


def test_watched_is_what_the_averaged_weights_translate(home: Path) -> None:
    folder = run(home, "recurrent")
    frames, loaded = timeless(folder / "watch.jsonl"), load_run(folder, CPU)
    assert [frame["step"] for frame in frames] == [0, 2, 4, 6]
    loaded.model.load_state_dict(read_weights(folder / "weights" / "step-00000006.safetensors"))
    (src, tgt), places = loaded.tokenizers, id_of_each(loaded.tokenizers.tgt)
    for sentence in frames[-1]["sentences"]:
        (translation,) = loaded.translator(SearchConfig(beam_size=1), "fp32").translate([sentence["source"]])
        assert sentence["translation"] == translation.text
        ids = [places[token] for token in sentence["said"][:-1]]
        (log_probs,) = token_log_probs(loaded.model, src.encode([sentence["source"]]), [ids])
        assert [p for *_, (_, p) in sentence["guesses"][0]] == pytest.approx(np.exp(log_probs), abs=6e-5)
        assert tgt.decode([ids]) == [translation.text]


def test_scores_that_do_not_compare_choose_anew(home: Path) -> None:
    assert said(home).count("Scores on dev do not compare") == 1  # with fewer sentences
    progress = newest(run(home, "translator"))["progress"]
    assert (progress["best_step"], progress["step"]) == (5, 5)


def test_a_dry_run_leaves_nothing_and_pictures_are_only_decoration(home: Path) -> None:
    assert "an epoch: 13 batches, 13 updates" in said(home)
    assert len(list(home.glob("pickles/tiny-*"))) == 1
    assert "continues without a picture of its curves: no font" in said(home)
    assert run(home, "kinds").joinpath("test.json").is_file()


def test_a_run_goes_on_until_it_is_stopped_and_says_how_to_resume(home: Path) -> None:
    folder, out = home / "pickles" / "stopped", said(home, "stopped")
    assert "Resuming from step 6\n" in out
    assert f"Run folder: {folder}\n" in out
    assert out.endswith("\nstatus 130\n")
    ((step, command),) = re.findall(r"Stopped at step (\d+); resume with: (.+)\n", out)
    python, program, *arguments = shlex.split(command)
    assert Path(python).samefile(sys.executable)
    assert Path(program).samefile(ROOT / "train.py")
    assert read_arguments(arguments).resume == folder
    progress = newest(folder)["progress"]
    assert progress["step"] == int(step) == 16
    assert progress["epoch"] > 0
    steps = [record["step"] for record in timeless(folder / "log.jsonl") if record["kind"] == "train"]
    assert steps == list(range(2, 17, 2))


def test_a_training_that_is_long_for_a_cpu_says_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, epoch, now = new_trainer(dropout=0.5), new_sampler().epoch(0), iter(range(100))
    trainer.training = replace(FP32, max_steps=30 * len(epoch) + 7, max_epochs=None)
    trainer.progress.step, before = 7, weights(trainer)
    assert not train.long_for_a_cpu(trainer, epoch, len(epoch))
    monkeypatch.setattr(train, "LONG_FOR_A_CPU", 0)
    monkeypatch.setattr(time, "monotonic", lambda: 3600.0 * next(now))  # the largest batch takes an hour
    n_hours = 30 * int(epoch.positions.sum()) / int(epoch.positions.max())
    warning = train.long_for_a_cpu(trainer, epoch, len(epoch))
    assert f"about {n_hours / 24:.1f} days on this CPU" in warning
    assert "--config kftt_ja_en_small" in warning
    assert same(weights(trainer), before, set())
    trainer.training = replace(trainer.training, max_epochs=29)  # is over before the updates are
    trainer.progress.step = 0
    assert f"about {29 * n_hours / 30 / 24:.1f} days" in train.long_for_a_cpu(trainer, epoch, len(epoch))
    trainer.training = replace(trainer.training, max_minutes=10)
    assert not train.long_for_a_cpu(trainer, epoch, len(epoch))


def test_a_long_training_is_begun_on_a_cpu_only_if_that_is_meant(home: Path) -> None:
    """Asked at the terminal; neither a dry run nor a resume asks."""
    shown = said(home, "asked")
    assert shown.endswith("train.py: interrupted\nstatus 130\n")
    assert shown.count("on this CPU, validations not included") == 4
    assert shown.count("all the same? [y/N]") == shown.count("Run folder") == 2  # asked twice; begun and resumed
    assert newest(run(home, "asked"))["progress"]["step"] == 7


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
    options = """--tokenizer.vocab_size 80 --model.tie all --model.positions rotary --name trunk --optimizer.kind muon
        --optimizer.ema_decay 0.8 --optimizer.schedule trapezoid --optimizer.decay_from 1000000
        --optimizer.warmup_steps 2 --training.report_every 1"""  # from 1000000: longer than the trunk lasts
    finished(run_python("train.py", *settings(home), *both, *options.split(), home=tmp_path))
    trunk = run(tmp_path, "trunk")
    assert again(trunk)
    untouched = {file: file.read_bytes() for file in trunk.rglob("*") if file.is_file()}

    back = ("--data.both_directions", "false", "--data.src_lang", "en", "--data.tgt_lang", "ja")
    files = ("--data.src", home / "my.en", "--data.tgt", home / "my.ja", "--optimizer.decay_steps", "6")
    finished(run_python("train.py", "--branch", trunk, "--name", "done", *back, *files, home=tmp_path))
    assert untouched == {file: file.read_bytes() for file in trunk.rglob("*") if file.is_file()}
    branch = run(tmp_path, "done")
    rates = [record["learning_rate"] for record in timeless(branch / "log.jsonl") if record["kind"] == "train"]
    assert rates == pytest.approx([0.01 * (1 - (n / 6) ** 0.5) for n in range(1, 7)])
    assert again(branch)
    src = load_run(branch, CPU).tokenizers.src
    assert src.tokens(src.encode(["an old temple"])[0])[0] == "<2ja>"


@pytest.mark.slow
def test_two_processes_are_one(home: Path, tmp_path: Path) -> None:
    """Dropout too: a batch's draws are its own, whichever process learns from it."""
    shutil.copytree(home / "corpus", tmp_path / "corpus")
    shared = """--batch.accumulate 2 --batch.tokens_per_batch 100 --optimizer.kind muon --optimizer.ema_decay 0.8
        --model.attention_dropout 0.1 --training.max_steps 8 --training.report_every 1"""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    finished(run_python("train.py", *settings(home), *shared.split(), "--name", "one", home=tmp_path))
    out = finished(run_python(*torchrun, *settings(home), *shared.split(), "--name", "two", home=tmp_path))
    assert "by 2 processes" in out
    assert out.count("Run folder") == 1
    assert len(list((tmp_path / "pickles").iterdir())) == 2
    alone, together = run(tmp_path, "one"), run(tmp_path, "two")
    for ours, theirs in zip(timeless(together / "log.jsonl"), timeless(alone / "log.jsonl"), strict=True):
        assert (ours["kind"], ours["step"], ours["epoch"]) == (theirs["kind"], theirs["step"], theirs["epoch"])
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    for a, b in zip(newest(alone)["net"].values(), newest(together)["net"].values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-3)  # Adam makes steps of noise where a gradient is only noise


def test_processes_that_cannot_share_an_update_are_refused(home: Path) -> None:
    arguments = read_arguments(settings(home))
    with pytest.raises(ValueError, match=r"give --batch\.accumulate 4 or a multiple of it"):
        train.train(arguments, Processes(0, 4), CPU)


def test_a_new_run_begins_with_the_weights_and_the_vocabulary_of_another(home: Path) -> None:
    source, tuned = run(home), run(home, "tuned")
    assert f"Initialised from the weights of {source}" in said(home)
    for name in ("tokenizer_src.model", "tokenizer_tgt.model"):
        assert (tuned / name).read_bytes() == (source / name).read_bytes()
    before, after = (load_run(folder, CPU) for folder in (source, tuned))
    assert after.config.data.src == home / "other.ja"
    same_weights(after.model, before.model)


def unprepared(config: TranslationConfig, sizes: dict[str, int]) -> Task:
    """Return a task without its texts."""
    task = object.__new__(TranslationTask)
    task.config, task.sizes, task.fingerprint, task.scoring = config, sizes, "", ""
    return task


@pytest.mark.parametrize(
    ("precision", "speedup", "resumes", "kept", "said"),
    [
        ("auto", 2.04, False, "bf16", "Training in bf16: measured here, bf16 is 2.0 times as fast"),
        ("auto", 1.1, False, "fp32", "Training in fp32: measured here, bf16 is 1.1 times as fast"),
        ("bf16", 0.5, False, "bf16", ""),
        ("bf16", 1.1, True, "bf16", "Training in bf16: measured here, bf16 is 1.1 times as fast"),
        ("bf16", 0.5, True, "bf16", "--training.precision fp32 would be faster"),
        ("fp32", 2.0, True, "fp32", "--training.precision bf16 would be faster"),
    ],
)
def test_a_run_keeps_the_precision_that_it_began_with(
    precision: Precision, speedup: float, resumes: bool, kept: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("utils.device", "utils.task.task"):
        monkeypatch.setattr(f"{module}.speedup", lambda _precision, _width, learning: speedup)  # noqa: ARG005 (by name)
    model, lines = replace(MODEL, d_model=16), list[str]()
    task = unprepared(TranslationConfig(model=model, training=TranslationTrainingConfig(precision=precision)), {})
    settle_precision(task, CPU, resumes, Processes(), lines.append)
    assert task.config.training.precision == kept
    assert said in "\n".join(lines) if said else not lines
    assert ("would be faster" in "".join(lines)) == ("would be faster" in said)


def test_another_architecture_is_named(home: Path) -> None:
    folder = run(home)
    config = TranslationConfig.load(folder / "config.yaml")
    other = replace(config, model=replace(config.model, n_heads=4))
    net = Transformer(other.model, 48, 48)
    trainer = Trainer(net, TranslationObjective(), Optimizer(net, FAST), FP32)
    before = weights(trainer)
    task = unprepared(other, {"source": 48, "target": 48})
    differs = r"model\.n_heads is 2 in the checkpoint and 4 in the settings$"
    with pytest.raises(ValueError, match=differs):
        train.resume(trainer, CheckpointStore(folder / "checkpoints", 2), task, print)
    with pytest.raises(ValueError, match=differs):
        init_from(net, folder, task, print)
    assert same(weights(trainer), before, set())


def test_a_new_vocabulary_begins_with_what_the_run_knows_of_its_tokens(home: Path) -> None:
    folder, told = run(home), list[str]()
    config, known, old = read_config(folder, TranslationConfig), load_tokenizers(folder), load_run(folder).model
    lines = ["寺がある。", "川だ。", "A temple. A river.", "xyz"]
    own = train_tokenizers(replace(config.tokenizer, vocab_size=22), lines[:2] * 9, lines[2:] * 9, symbols=["\ue000"])
    net = build_network(config, *map(len, own))
    drawn = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    task = unprepared(config, dict(zip(("source", "target"), map(len, own), strict=True)))
    task.vocabulary = own
    init_from(net, folder, task, told.append)
    for name, side in (("src_embedding.weight", 0), ("tgt_embedding.weight", 1)):
        ids, new, before = id_of_each(known[side]), net.state_dict()[name], old.state_dict()[name]
        n_known = 0
        for i, token in enumerate(every_token(own[side])):
            read = [piece for piece in known[side].encode([token.replace("▁", " ").strip()])[0] if piece != UNK_ID]
            mean = before[read].mean(0) if read else drawn[name][i]
            assert_close(new[i], before[ids[token]] if token in ids else mean)
            n_known += token in ids
        assert f"{name}: {n_known} of {len(own[side])} tokens are known to the run" in told
        assert 0 < n_known < len(own[side])
    assert_close(
        net.state_dict()["decoder.0.feed_forward.widen.weight"], old.state_dict()["decoder.0.feed_forward.widen.weight"]
    )
    with pytest.raises(
        ValueError, match="--new-vocabulary is for the weights of another run: also give --init-from RUN"
    ):
        read_arguments(["--config", "demo", "--new-vocabulary"])
    assert read_arguments(
        ["--init-from", str(folder), "--new-vocabulary", "--tokenizer.vocab_size", "50"]
    ).new_vocabulary


def test_a_checkpoint_from_before_an_option_is_of_its_default(tmp_path: Path) -> None:
    trainer, store = new_trainer(), CheckpointStore(tmp_path, 1)
    sinusoidal, learned = (
        unprepared(TranslationConfig(model=model), {}) for model in (MODEL, replace(MODEL, positions="learned"))
    )
    state = sinusoidal.checked_on_resume() | trainer.state()
    del state["model"]["positions"]
    store.save(state, 1)
    train.resume(trainer, store, sinusoidal, print)
    with pytest.raises(ValueError, match=r"model\.positions is sinusoidal in the checkpoint and learned in the"):
        train.resume(trainer, store, learned, print)


def test_what_comes_next_works_as_it_is_printed(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("utils.text.loop.OFTEN", 2)  # as in the training, a process of its own
    _, next_steps, *_ = said(home).split("What next?\n")
    command = shlex.split(next(line for line in next_steps.splitlines() if line.startswith("    ")))
    translated = outcome("translate.py", translate.main, capsys, *command[2:])
    assert translated.out.strip() in (run(home) / "test.txt").read_text(encoding="utf-8").split("\n")
    for sentence in ("寺がある", "-5 度", "it's"):
        lines = what_next(Path("pickles/my run"), sentence).splitlines()
        commands = [shlex.split(line) for line in lines if line.startswith("    ")]
        assert all(Path(python).samefile(sys.executable) for python, *_ in commands)
        asked = [parser_of(Path(program).name).parse_args(words) for _, program, *words in commands]
        assert [translation.texts for translation in asked[:3]] == [[sentence], [sentence], []]
        assert [translation.run for translation in asked[:3]] == [["pickles/my run"]] * 3
        assert len(asked) == 5
    assert "--attention" not in what_next(Path("run"), "寺", attends=False)


def test_a_score_that_a_task_does_not_have_is_refused_before_it_looks_for_its_text() -> None:
    nowhere = Path("nowhere")
    cases: list[tuple[Any, str]] = [
        (TranslationConfig(data=DataConfig(src=nowhere, tgt=nowhere)), "accuracy"),
        (MaskedLanguageConfig(data=MonolingualConfig(text=nowhere)), "bleu"),
        (LanguageConfig(data=MonolingualConfig(text=nowhere)), "accuracy"),
        (ClassificationConfig(data=LabelledConfig(*[nowhere] * 6)), "chrf"),
    ]
    for config, score in cases:
        with pytest.raises(ValueError, match=f"^select_by={score} is not scored by this task"):
            prepare(replace(config, training=replace(config.training, select_by=score)), None, print)


@pytest.mark.parametrize(
    ("name", "scores", "steps"),
    [
        ("bert", {"accuracy", "next_sentence"}, [2, 4, 5]),
        ("kinds", {"accuracy"}, [2, 4, 5]),
        ("xl", {"word_ppl"}, [2, 4, 6]),
        ("translator", {"bleu", "chrf"}, [2, 4, 5]),
    ],
)
def test_every_task_leaves_a_run_folder_that_holds_everything(
    home: Path, name: str, scores: set[str], steps: list[int]
) -> None:
    folder = run(home, name)
    result = json.loads((folder / "test.json").read_text(encoding="utf-8"))
    assert scores <= result.keys()
    assert (result["name"], result["seed"], result["steps"]) == (name, 1, steps[-1])
    dev = [record for _, record in read_log(folder / "log.jsonl") if record["kind"] == "dev"]
    assert [record["step"] for record in dev] == steps
    assert all(scores <= record.keys() for record in dev)


def test_other_tasks_have_their_units_and_say_that_streams_were_changed(home: Path) -> None:
    out = said(home)
    assert "The text is split into other streams than before: the epoch starts over, with an empty memory" in out
    assert re.findall(r"^step .* [\d,]+ ([a-z ]+/s)", out, re.M) == ["masked tok/s", "texts/s"]


def test_a_cosine_comes_down_where_the_training_ends(home: Path) -> None:
    """First at 4 updates, and then, as the training goes on, at 6; one is of warm-up."""
    log = read_log(run(home, "xl") / "log.jsonl")
    rates = {record["step"]: record["learning_rate"] for _, record in log if record["kind"] == "train"}
    ends = dict.fromkeys(range(1, 5), 4) | dict.fromkeys((5, 6), 6)
    config = OptimizerConfig(schedule="cosine", warmup_steps=1)
    expected = {step: learning_rate(step, config.ending_at(end)) for step, end in ends.items()}
    assert rates == pytest.approx(expected)
    assert expected[4] == expected[6] == 0 < expected[5]


def test_a_run_of_another_task_is_refused(home: Path) -> None:
    for wrong in ("xl", "kinds", "translator"):
        with pytest.raises(ValueError, match=r"but masked_language is needed here$"):
            load_bert(run(home, wrong))


def same_weights(ours: nn.Module | None, theirs: nn.Module) -> None:
    assert ours is not None
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=1e-9)


def test_a_recurrent_translator_is_trained_resumed_and_scored_like_any(home: Path) -> None:
    folder = run(home, "recurrent")
    records = [(record["kind"], record["step"]) for record in timeless(folder / "log.jsonl")]
    assert [step for kind, step in records if kind == "dev"] == [2, 4, 6]
    assert isinstance(load_run(folder, CPU).model, RecurrentTranslator)
    told = json.loads((folder / "test.json").read_text(encoding="utf-8"))
    assert (told["steps"], told["config"]["model"]["d_hidden"]) == (6, 24)
    assert len((folder / "test.txt").read_text(encoding="utf-8").splitlines()) > 1


def test_a_classifier_and_a_translator_begin_with_the_bert_and_its_vocabulary(home: Path) -> None:
    pretrained = load_bert(run(home, "bert"))
    classifier = load_classifier(run(home, "kinds")).net
    same_weights(classifier.bert, pretrained.net.bert)
    same_weights(classifier.pooler, pretrained.net.pooler)
    translator = load_run(run(home, "translator"), CPU)
    same_weights(translator.transformer.bert, pretrained.net.bert)
    words = every_token(pretrained.vocabulary)
    for folder in (run(home, "kinds"), run(home, "translator")):
        tokenizer = load_tokenizers(folder).src
        assert every_token(tokenizer) == words
    config = translator.config
    assert config.model.bert is not None
    assert config.model.bert.architecture() == pretrained.config.model.architecture()
    assert len(translator.translator().translate(TEXT.src[:2])) == 2
