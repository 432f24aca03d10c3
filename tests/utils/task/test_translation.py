"""Every setting of a translator reaches its training, validation and test; in one process, on a tiny text."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sacrebleu
import torch

from const.token import EOS_ID
from models.bert import BertConfig
from models.transformer import Transformer, TransformerConfig
from tests.tiny import MODEL, TEXT, TOKENIZER
from utils.config import TranslationConfig
from utils.dataset import corpus as corpus_module
from utils.dataset.batch import AnyBatch, BatchConfig, BucketSampler, Sampler, padded
from utils.dataset.corpus import DataConfig, training_tokens
from utils.run import TEST, TRANSLATIONS, WEIGHTS, Run, create_run, load_run
from utils.search.constraint import SearchConfig
from utils.search.translator import Translator
from utils.task import translation
from utils.task.translation import TranslationTask
from utils.training.checkpoint import write_weights
from utils.training.loss import RDropObjective, TranslationObjective, mean_loss
from utils.training.plan import Progress, TranslationTrainingConfig
from utils.training.report import Validate, Validation

CONFIG = TranslationConfig(
    name="tiny",
    tokenizer=replace(TOKENIZER, sampling=0.3),
    model=MODEL,
    batch=BatchConfig(tokens_per_batch=200, max_tokens=32, length_multiple=8, sentences_per_batch=5),
    training=TranslationTrainingConfig(
        seed=7, label_smoothing=0.3, r_drop=2.0, bleu_sentences=3, precision="fp32", device="cpu"
    ),
    search=SearchConfig(beam_size=4),
)
DEV, TEST_TEXT = TEXT[::12], TEXT[1::8]
TRAIN = TEXT[2::4]  # and no line of theirs
SPLITS = {"": TRAIN, "dev_": DEV, "test_": TEST_TEXT}


class Texts(NamedTuple):
    """Three texts that have no line in common, and settings that name them."""

    config: TranslationConfig
    root: Path

    def task(self, **changes: Any) -> TranslationTask:
        return TranslationTask(replace(self.config, **changes), None, print)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Texts:
    """Caches go where the texts are."""
    files: dict[str, Any] = {}
    for split, text in SPLITS.items():
        for side in ("src", "tgt"):
            files[f"{split}{side}"] = file = tmp_path / f"{split or 'train_'}{side}"
            file.write_text("".join(f"{line}\n" for line in getattr(text, side)), encoding="utf-8")
    for name in ("prepare_corpus", "cached_tokenizers", "cached_tokens", "training_tokens"):
        monkeypatch.setattr(translation, name, partial(getattr(translation, name), root=tmp_path))
    return Texts(replace(CONFIG, data=DataConfig(**files)), tmp_path)


def batches(sampler: Sampler[Any], n: int = 0) -> list[Any]:
    epoch = sampler.epoch(n)
    return [(epoch[i].src.tolist(), epoch[i].tgt.tolist()) for i in range(len(epoch))]


def test_the_loss_is_smoothed_and_passes_twice_as_asked_for(texts: Texts) -> None:
    objective = texts.task().objective
    assert isinstance(objective, RDropObjective)
    assert (objective.smoothing, objective.alpha) == (0.3, 2.0)
    plain = texts.task(training=replace(CONFIG.training, r_drop=0.0)).objective
    assert isinstance(plain, TranslationObjective)
    assert plain.smoothing == 0.3


def test_batches_are_of_the_training_text_as_asked_for(texts: Texts) -> None:
    task = texts.task()
    corpus = corpus_module.prepare_corpus(texts.config.data, texts.root)
    tokens = training_tokens(corpus, texts.config.data, task.vocabulary, 0.3, 7, print, texts.root)
    twin = BucketSampler(tokens, 200, 32, 7, 8, 5)
    for n in (0, 1):
        assert batches(task.sampler, n) == batches(twin, n)
    likeliest = training_tokens(corpus, texts.config.data, task.vocabulary, 0.0, 7, print, texts.root)
    others = (  # each of these settings is seen in the batches
        BucketSampler(likeliest, 200, 32, 7, 8, 5),
        BucketSampler(tokens, 100, 32, 7, 8, 5),
        BucketSampler(tokens, 200, 24, 7, 8, 5),
        BucketSampler(tokens, 200, 32, 1, 8, 5),
        BucketSampler(tokens, 200, 32, 7, 1, 5),
        BucketSampler(tokens, 200, 32, 7, 8),
    )
    for other in others:
        assert batches(task.sampler) != batches(other)


def test_a_validation_translates_the_first_dev_sentences_greedily(
    texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = texts.task()
    searches: list[SearchConfig] = []
    made = Run.translator

    def watched(run: Run, search: SearchConfig) -> Translator:
        searches.append(search)
        return made(run, search)

    monkeypatch.setattr(Run, "translator", watched)
    dev, judge = task.validation(task.build())
    validation = judge(1.0)
    assert [sample.source for sample in validation.samples] == DEV.src[:3]
    assert searches == [replace(CONFIG.search, beam_size=1)]
    rows = [row[row > EOS_ID].tolist() for batch in dev for row in batch.tgt]
    assert sorted(task.vocabulary.tgt.decode(rows)) == sorted(DEV.tgt)


class Trained:
    """What has trained, and has forgotten everything since its best weights were written."""

    def __init__(self, net: Transformer) -> None:
        self.net = net
        self.progress = Progress(step=9, target_tokens=1234, seconds=90.0, best_step=6)

    def test(self, batches: Sequence[AnyBatch], validate: Validate) -> Validation:
        with torch.no_grad():
            loss = mean_loss(partial(TranslationObjective(), self.net.eval()), batches)
        return validate(loss)


def test_the_best_weights_are_scored_on_the_test_text(texts: Texts) -> None:
    task = texts.task()
    folder = create_run(task.config, task.vocabulary, texts.root / "runs")
    best, last = task.build(), task.build()
    write_weights(best.state_dict(), folder / WEIGHTS, 0.0, n_averaged=3)
    task.test_and_save(Trained(last), folder, print)
    translations = (folder / TRANSLATIONS).read_text(encoding="utf-8").splitlines()
    run = load_run(folder, torch.device("cpu"))
    assert translations == [found.text for found in run.translator(CONFIG.search).translate(TEST_TEXT.src)]
    result = json.loads((folder / TEST).read_text(encoding="utf-8"))
    assert result["bleu"] == pytest.approx(sacrebleu.corpus_bleu(translations, [TEST_TEXT.tgt]).score)
    src, tgt = (side.encode(lines) for side, lines in zip(task.vocabulary, (TEST_TEXT.src, TEST_TEXT.tgt), strict=True))
    nats = n_tokens = 0.0
    for source, target in zip(src, tgt, strict=True):
        log_p = best.eval()(padded([source]), padded([target], bos=True)[:, :-1]).log_softmax(-1)[0]
        nats -= log_p[range(len(log_p)), [*target, EOS_ID]].sum().item()
        n_tokens += len(log_p)
    assert result["perplexity"] == pytest.approx(math.exp(nats / n_tokens), rel=1e-4)
    facts = ("name", "seed", "steps", "best_step", "averaged", "target_tokens", "minutes")
    assert {name: result[name] for name in facts} == {
        "name": "tiny",
        "seed": 7,
        "steps": 9,
        "best_step": 6,
        "averaged": 3,
        "target_tokens": 1234,
        "minutes": 1.5,
    }


def test_sides_in_each_others_language_are_refused(texts: Texts) -> None:
    data = texts.config.data
    with pytest.raises(ValueError, match=r"train_tgt is not in ja: 0% .* are --data.src and --data.tgt swapped"):
        texts.task(data=replace(data, src=data.tgt, tgt=data.src))
    with pytest.raises(ValueError, match=r"train_src is not in de: 100% .* is --data.src_lang wrong"):
        texts.task(data=replace(data, src_lang="de"))
    for own in (data, replace(data, dev_src=None, dev_tgt=None)):  # before a text is cleaned or split
        assert not list(texts.root.glob("*/"))
        with pytest.raises(ValueError, match=r"/train_tgt is not in ja"):
            texts.task(data=replace(own, src=data.tgt, tgt=data.src))
        with pytest.raises(
            ValueError, match=r"train_tgt is not in ja: .* are --data.more_src and --data.more_tgt swapped"
        ):
            texts.task(data=replace(own, more_src=data.tgt, more_tgt=data.src))
        assert not list(texts.root.glob("*/"))
    for kind in ("dev", "test"):
        swapped = {f"{kind}_src": data.tgt, f"{kind}_tgt": data.src}
        with pytest.raises(ValueError, match=rf"are --data.{kind}_src and --data.{kind}_tgt swapped"):
            texts.task(data=replace(data, **swapped))  # type: ignore[arg-type]


def test_two_vocabularies_cannot_share_their_embeddings(texts: Texts) -> None:
    with pytest.raises(ValueError, match=r"^tie=all .* give --tokenizer.joint true, or --model.tie target$"):
        texts.task(model=replace(MODEL, tie="all"))


LEARNED = replace(MODEL, positions="learned", max_length=40)
BERT = BertConfig(d_model=16, n_heads=2, d_ff=32, n_layers=1, max_length=40)


@pytest.mark.parametrize(
    ("model", "option", "sides"),
    [
        (LEARNED, "model.max_length", ("src", "tgt")),
        (replace(MODEL, bert=BERT, n_encoder_layers=0), "model.bert.max_length", ("src",)),
    ],
    ids=["learned", "BERT"],
)
def test_lines_that_a_learned_table_of_positions_has_no_room_for_are_refused(
    texts: Texts, model: TransformerConfig, option: str, sides: Sequence[str]
) -> None:
    changes = {"model": model, "batch": BatchConfig(max_tokens=40)}
    texts.task(**changes)
    with pytest.raises(ValueError, match=rf"^max_tokens=41 .* {option}=40: give --{option} 41"):
        texts.task(model=model, batch=BatchConfig(max_tokens=41))
    for split in ("dev", "test"):
        for side in sides:
            file = texts.root / f"{split}_{side}"
            before = file.read_text(encoding="utf-8")
            file.write_text(before.replace("\n", 9 * before.split("\n")[0] + "\n", 1), encoding="utf-8")
            with pytest.raises(ValueError, match=rf"{file}, line 1 takes \d+ positions.* {option}=40: give --{option}"):
                texts.task(**changes)
            file.write_text(before, encoding="utf-8")
