"""train.py from text files to a BERT, to what is made of it, and to a Transformer-XL, all in one process."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from config.data import DataConfig, LabelledConfig, MonolingualConfig
from config.training import OptimizerConfig
from const.path import ROOT
from models.bert import Bert
from tests.tiny import TEXT
from utils.config import ClassificationConfig, LanguageConfig, MaskedLanguageConfig, TranslationConfig
from utils.run import load_bert, load_classifier, load_language_model, load_run, newest_run
from utils.task.bert import MaskedLanguageTask
from utils.task.classification import ClassificationTask
from utils.task.language import LanguageTask
from utils.task.task import Task
from utils.task.translation import TranslationTask
from utils.text.tokenizer import load_tokenizers
from utils.training.plan import learning_rate
from utils.training.report import read_log

CPU = torch.device("cpu")
NOWHERE = Path("nowhere")
COMMON = [
    "--tokenizer.kind",
    "bpe",
    "--tokenizer.vocab_size",
    "48",
    "--optimizer.warmup_steps",
    "1",
    "--training.max_steps",
    "4",
    "--training.validate_every",
    "2",
    "--training.report_every",
    "1",
    "--training.precision",
    "fp32",
    "--training.device",
    "cpu",
]
SMALL = ["--model.d_model", "16", "--model.n_heads", "2", "--model.d_ff", "32", "--model.dropout", "0.1"]
LOGGED = ["--training.max_steps", "5"]  # enough for a line that says where the training is
STILL = ["--optimizer.peak_lr", "1e-12"]  # begins with other weights, and leaves them as they are
# a word @NAME is the run of that name
RUN = """
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
import train
from const.path import PICKLES
from utils.config import MaskedLanguageConfig
from utils.run import read_config
from utils.task.bert import MaskedLanguageTask
for argv in {commands!r}:
    sys.argv = ["train.py", *(str(*PICKLES.glob(word[1:] + "-*")) if word[0] == "@" else word for word in argv)]
    train.main()
(bert,) = PICKLES.glob("bert-*")
away = bert.rename(PICKLES / "away")
sys.argv = ["train.py", "--resume", str(*PICKLES.glob("translator-*")), "--training.max_steps", "5"]
train.main()
away.rename(bert)
config = read_config(bert, MaskedLanguageConfig)
for seed in (1, 2):
    task = MaskedLanguageTask(replace(config, training=replace(config.training, seed=seed)), bert, print)
    dev, _ = task.validation(task.build())
    for split, batches in (("dev", dev), ("train", task.sampler.all())):
        print(f"{{split}} of seed {{seed}}: {{[batch.ids.tolist() for batch in batches]}}")
"""


def text_of(home: Path, lines: list[str], name: str) -> str:
    (home / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(home / name)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT; a classifier and a translator that begin with it; a Transformer-XL that was gone on with.

    The translator was gone on with too, while the BERT that it had begun with was not there.
    """
    home = tmp_path_factory.mktemp("tasks")
    ja, en = text_of(home, TEXT.src, "my.ja"), text_of(home, TEXT.tgt, "my.en")
    labels = text_of(home, [line.split()[3] for line in TEXT.tgt], "labels")
    documents = text_of(home, [f"D{i} 10" for i in range(12)], "docs")
    layers = ["--model.n_layers", "2"]
    texts = ["--data.text", ja, "--data.documents", documents, "--data.held_out", "12"]
    bert = ["--task", "masked_language", "--name", "bert", *texts, *SMALL, *layers, "--model.max_length", "40"]
    bounded = ["--batch.max_tokens", "40", "--batch.tokens_per_batch", "200"]
    sides = (("text", ja), ("labels", labels))
    files = [f"--data.{split}{kind}={file}" for split in ("", "dev_", "test_") for kind, file in sides]
    classifier = ["--task", "classification", "--name", "kinds", *files, "--training.select_by", "accuracy"]
    pairs = ["--data.src", ja, "--data.tgt", en, "--data.held_out", "10", "--tokenizer.joint", "false"]
    translator = ["--task", "translation", "--name", "translator", *pairs, *SMALL, "--model.tie", "target"]
    depth = ["--model.n_encoder_layers", "0", "--model.n_decoder_layers", "1", "--training.bleu_sentences", "4"]
    streams = ["--batch.n_streams", "2", "--batch.segment_length", "8", "--batch.accumulate", "2"]
    xl = ["--task", "language", "--name", "xl", "--model.memory_length", "8", "--optimizer.schedule", "cosine"]
    language = [*xl, *texts, *SMALL, *layers, *streams]
    commands = [
        [*language, *COMMON],
        ["--resume", "@xl", "--training.max_steps", "6", "--batch.n_streams", "3"],
        [*bert, *bounded, *COMMON, *LOGGED],
        [*classifier, *bounded, *STILL, *COMMON, *LOGGED, "--model.init-encoder", "@bert"],
        [*translator, *depth, *bounded, *STILL, *COMMON, "--model.init-encoder", "@bert"],
    ]
    environment = os.environ | {
        "MIYAKO_CORPUS": str(home / "corpus"),
        "MIYAKO_PICKLES": str(home / "pickles"),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.run(
        [sys.executable, "-c", RUN.format(commands=commands)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    (home / "said.txt").write_text(process.stdout, encoding="utf-8")
    return home


@pytest.mark.parametrize(
    ("task", "config", "known"),
    [
        (TranslationTask, TranslationConfig(data=DataConfig(src=NOWHERE, tgt=NOWHERE)), {"bleu", "chrf"}),
        (MaskedLanguageTask, MaskedLanguageConfig(data=MonolingualConfig(text=NOWHERE)), {"accuracy"}),
        (LanguageTask, LanguageConfig(data=MonolingualConfig(text=NOWHERE)), set()),
        (ClassificationTask, ClassificationConfig(data=LabelledConfig(*[NOWHERE] * 6)), {"accuracy"}),
    ],
)
def test_a_task_refuses_scores_that_it_does_not_have_before_it_looks_for_its_text(
    task: Callable[..., Task], config: Any, known: set[str]
) -> None:
    for score in ("loss", "bleu", "chrf", "accuracy"):
        asked = dataclasses.replace(config, training=dataclasses.replace(config.training, select_by=score))
        expected = "nowhere" if score in known | {"loss"} else f"^select_by={score} is not scored by this task"
        with pytest.raises(ValueError, match=expected):
            task(asked, None, print)


def run(home: Path, name: str) -> Path:
    (folder,) = (home / "pickles").glob(f"{name}-*")
    return folder


@pytest.mark.parametrize(
    ("name", "scores"),
    [
        ("bert", {"accuracy", "next_sentence"}),
        ("kinds", {"accuracy"}),
        ("xl", {"word_ppl"}),
        ("translator", {"bleu", "chrf"}),
    ],
)
def test_every_task_leaves_a_run_folder_that_holds_everything(home: Path, name: str, scores: set[str]) -> None:
    folder = run(home, name)
    for file in ("config.yaml", "model.safetensors", "curve.png", "checkpoints", "log.jsonl"):
        assert (folder / file).exists()
    result = json.loads((folder / "test.json").read_text(encoding="utf-8"))
    assert scores <= result.keys()
    assert (result["name"], result["seed"]) == (name, 1)
    steps = {"xl": [2, 4, 6]}.get(name, [2, 4, 5])
    assert result["steps"] == steps[-1]
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    dev = [record for record in records if record["kind"] == "dev"]
    assert [record["step"] for record in dev] == steps
    assert all(scores <= record.keys() for record in dev)


def test_other_streams_than_before_begin_an_epoch_anew(home: Path) -> None:
    said = (home / "said.txt").read_text(encoding="utf-8")
    assert "The text is split into other streams than before: the epoch starts over, with an empty memory" in said


def test_berts_of_several_seeds_are_scored_on_the_same_examples(home: Path) -> None:
    said = (home / "said.txt").read_text(encoding="utf-8")
    (dev, train), (dev_of_another, train_of_another) = (
        re.findall(rf"^(?:dev|train) of seed {seed}: (.+)$", said, re.M) for seed in (1, 2)
    )
    assert dev == dev_of_another
    assert train != train_of_another


def test_the_speed_is_of_what_is_predicted(home: Path) -> None:
    said = (home / "said.txt").read_text(encoding="utf-8")
    assert re.findall(r"^step .* [\d,]+ ([a-z ]+/s)", said, re.M) == ["masked tok/s", "texts/s"]


def test_a_cosine_comes_down_where_the_training_ends(home: Path) -> None:
    """First at 4 updates, and then, as the training goes on, at 6; one is of warm-up."""
    log = read_log(run(home, "xl") / "log.jsonl")
    rates = {record["step"]: record["learning_rate"] for _, record in log if record["kind"] == "train"}
    ends = dict.fromkeys(range(1, 5), 4) | dict.fromkeys((5, 6), 6)
    config = OptimizerConfig(schedule="cosine", warmup_steps=1)
    expected = {step: learning_rate(step, config.ending_at(end)) for step, end in ends.items()}
    assert rates == pytest.approx(expected)
    assert expected[4] == expected[6] == 0 < expected[5]


def test_what_was_trained_is_read_again(home: Path) -> None:
    assert load_language_model(run(home, "xl")).config.model.memory_length == 8
    assert load_bert(run(home, "bert")).config.name == "bert"
    assert set(load_classifier(run(home, "kinds")).vocabulary.labels) == {"old", "new", "beautiful", "small"}
    for wrong in ("xl", "kinds", "translator"):
        with pytest.raises(ValueError, match=r"but masked_language is needed here$"):
            load_bert(run(home, wrong))


def same_bert(ours: Bert, theirs: Bert) -> None:
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_a_classifier_and_a_translator_begin_with_the_bert_and_its_vocabulary(home: Path) -> None:
    pretrained = load_bert(run(home, "bert"))
    classifier = load_classifier(run(home, "kinds"))
    same_bert(classifier.net.bert, pretrained.net.bert)
    translator = load_run(run(home, "translator"), CPU)
    assert isinstance(translator.model.src_embedding, Bert)
    same_bert(translator.model.src_embedding, pretrained.net.bert)
    words = pretrained.tokenizer.tokens(range(len(pretrained.tokenizer)))
    for folder in (run(home, "kinds"), run(home, "translator")):
        tokenizer = load_tokenizers(folder).src
        assert tokenizer.tokens(range(len(tokenizer))) == words
    config = translator.config
    assert isinstance(config, TranslationConfig)
    assert config.model.bert is not None
    assert config.model.bert.architecture() == pretrained.config.model.architecture()
    assert len(translator.translator().translate(TEXT.src[:2])) == 2


def test_the_newest_run_of_a_task_is_found_among_others(home: Path) -> None:
    assert newest_run("model.safetensors", home / "pickles") == run(home, "translator")
    assert newest_run("model.safetensors", home / "pickles", LanguageConfig) == run(home, "xl")
    assert newest_run("model.safetensors", home / "pickles", None) == run(home, "translator")
