"""A BERT, a classifier and a language model: which text is learned from, which chooses, which is scored; refusals."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial, partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from const.token import EOS_ID
from models.bert import ClassifierConfig
from tests.tiny import MODEL
from tests.utils.task.tiny_run import BERT, XL, bert_run
from utils.config import AnyConfig, ClassificationConfig, LanguageConfig, MaskedLanguageConfig, TranslationConfig
from utils.dataset.batch import BatchConfig
from utils.dataset.corpus import Split
from utils.dataset.ids import cached_tokenizer
from utils.dataset.labelled import LabelledConfig, LabelledText
from utils.dataset.masked import MaskingConfig
from utils.dataset.monolingual import MonolingualConfig, MonolingualCorpus
from utils.dataset.stream import SegmentBatch, StreamConfig
from utils.evaluation.judge import WordPerplexity
from utils.run import load_bert
from utils.task import bert, classification, language
from utils.task.bert import MaskedLanguageTask
from utils.task.classification import ClassificationTask
from utils.task.language import LanguageTask
from utils.task.translation import TranslationTask
from utils.text.tokenizer import TokenizerConfig, load_tokenizers

# every split has words of its own, all of which stand in the training text too; but for the last, which is unknown
WORDS = {"": "京都 奈良 大阪 宇治 寺 橋", "dev_": "京都 奈良 新", "test_": "大阪 宇治 新"}
KNOWN = {split: {word for word in words.split() if word != "新"} for split, words in WORDS.items()}
ONE_WORD = TokenizerConfig(kind="word", min_freq=1, joint=False)
BATCH = BatchConfig(tokens_per_batch=64, max_tokens=16)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Texts and labels; caches go beside them."""
    for split, words in WORDS.items():
        n = 12 if not split else 4
        (tmp_path / f"{split}text").write_text(f"{words}\n" * n, encoding="utf-8")
        (tmp_path / f"{split}labels").write_text("old\nnew\n" * (n // 2), encoding="utf-8")
    for module in (bert, language):
        monkeypatch.setattr(module, "prepare_monolingual", partial(module.prepare_monolingual, root=tmp_path))
    for name in ("tokenizer", "tokens"):
        monkeypatch.setattr(MonolingualCorpus, name, partialmethod(getattr(MonolingualCorpus, name), root=tmp_path))
    monkeypatch.setattr(classification, "cached_tokenizer", partial(cached_tokenizer, root=tmp_path))
    monkeypatch.setattr(LabelledText, "cached", partial(LabelledText.cached, root=tmp_path))
    return tmp_path


def monolingual(root: Path) -> MonolingualConfig:
    return MonolingualConfig(text=root / "text", dev_text=root / "dev_text", test_text=root / "test_text")


def labelled(root: Path) -> LabelledConfig:
    return LabelledConfig(*(root / f"{split}{kind}" for split in WORDS for kind in ("text", "labels")))


def masked(root: Path) -> MaskedLanguageConfig:
    return MaskedLanguageConfig(data=monolingual(root), tokenizer=ONE_WORD, model=BERT, batch=BATCH)


def classifier(root: Path) -> ClassificationConfig:
    shape = ClassifierConfig(d_model=8, n_heads=2, d_ff=12, n_layers=1, max_length=16)
    return ClassificationConfig(data=labelled(root), tokenizer=ONE_WORD, model=shape, batch=BATCH)


def language_model(root: Path) -> LanguageConfig:
    return LanguageConfig(data=monolingual(root), tokenizer=ONE_WORD, model=XL, batch=StreamConfig(2, 6))


def words_of(task: Any, batches: Iterable[Any]) -> set[str]:
    """The words that stand in some batches, nothing of them masked."""
    tokenizer = getattr(task.vocabulary, "src", None) or task.vocabulary.tokenizer
    ids = {i for batch in batches for i in batch.ids.flatten().tolist() if EOS_ID < i < len(tokenizer)}
    return {tokenizer.decode([[i]])[0] for i in ids}


@pytest.mark.parametrize(
    ("module", "kind", "config_of"),
    [
        (bert, MaskedLanguageTask, masked),
        (classification, ClassificationTask, classifier),
        (language, LanguageTask, language_model),
    ],
    ids=["masked language", "classification", "language"],
)
def test_what_is_learned_from_what_chooses_and_what_is_scored_are_three_texts(
    root: Path, monkeypatch: pytest.MonkeyPatch, module: Any, kind: Any, config_of: Any
) -> None:
    task = kind(config_of(root), None, print)
    net = task.build()
    dev, _ = task.validation(net)
    test: list[Any] = []

    def score_best(*given: Any) -> SimpleNamespace:
        test.extend(*(batches for batches in given if isinstance(batches, list)))
        return SimpleNamespace(samples=[])

    monkeypatch.setattr(module, "score_best", score_best)
    task.test_and_save(SimpleNamespace(net=net), root, print)
    tokenizer = getattr(task.vocabulary, "src", None) or task.vocabulary.tokenizer
    assert {tokenizer.decode([[i]])[0] for i in range(EOS_ID + 1, len(tokenizer))} == KNOWN[""]
    assert words_of(task, task.sampler.all()) == KNOWN[""]
    assert words_of(task, dev) == KNOWN["dev_"]
    assert words_of(task, test) == KNOWN["test_"]


def test_words_are_counted_in_the_text_that_is_scored(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits: list[str] = []

    class Watched(WordPerplexity):
        def __init__(self, corpus: MonolingualCorpus, split: Split, batches: Sequence[SegmentBatch]) -> None:
            super().__init__(corpus, split, batches)
            splits.append(split)

    monkeypatch.setattr(language, "WordPerplexity", Watched)
    monkeypatch.setattr(language, "score_best", lambda *_: None)
    task = LanguageTask(language_model(root), None, print)
    net = task.build()
    task.validation(net)
    task.test_and_save(SimpleNamespace(net=net), root, print)
    assert splits == ["dev", "test"]


def test_a_classifier_begins_with_the_pooler_of_its_bert_too(root: Path) -> None:
    folder = bert_run(root / "runs")
    config = classifier(root)
    net = ClassificationTask(replace(config, model=replace(config.model, init_encoder=folder)), None, print).build()
    theirs = load_bert(folder).net
    for name in ("bert", "pooler"):
        ours = getattr(net, name).state_dict()
        assert all(weight.equal(ours[key]) for key, weight in getattr(theirs, name).state_dict().items())
    assert len(load_tokenizers(folder).src) + 1 == len(net.bert.embedding.weight)


def shortened(config: Any, **model: Any) -> Any:
    return replace(config, model=replace(config.model, **model))


@pytest.mark.parametrize(
    ("kind", "config_of", "message"),
    [
        (
            MaskedLanguageTask,
            lambda root: shortened(replace(masked(root), masking=MaskingConfig(next_sentence=True)), n_segments=1),
            "n_segments=1 has no room for a second sentence: give --model.n_segments 2",
        ),
        (MaskedLanguageTask, lambda root: shortened(masked(root), max_length=15), "model.max_length=15"),
        (ClassificationTask, lambda root: shortened(classifier(root), max_length=15), "model.max_length=15"),
        (
            ClassificationTask,
            lambda root: replace(classifier(root), data=replace(labelled(root), dev_labels=root / "text")),
            "京都 奈良 大阪 宇治 寺 橋",
        ),
    ],
    ids=["one segment", "a short BERT", "a short classifier", "an unknown label"],
)
def test_what_cannot_be_learned_is_refused(root: Path, kind: Any, config_of: Any, message: str) -> None:
    config: AnyConfig = config_of(root)
    with pytest.raises(ValueError, match=message):
        kind(config, None, print)


def test_a_held_out_text_without_examples_is_refused_before_the_training(root: Path) -> None:
    (root / "test_text").write_text("京都\n", encoding="utf-8")
    asked = replace(masked(root), masking=MaskingConfig(next_sentence=True))
    with pytest.raises(ValueError, match=r"^1 sentences in 1 documents cannot give both pairs that follow"):
        MaskedLanguageTask(asked, None, print)


def test_a_bert_that_is_none_of_the_source_is_refused(root: Path) -> None:
    folder = bert_run(root / "runs")
    begun = replace(MODEL, init_encoder=folder)
    joint = TranslationConfig(model=begun, tokenizer=TokenizerConfig(joint=True))
    with pytest.raises(ValueError, match=r"init_encoder=.* give --tokenizer.joint false"):
        TranslationTask(joint, None, print)
    english = replace(TranslationConfig().data, src_lang="en", tgt_lang="ja")
    apart = replace(joint, tokenizer=replace(joint.tokenizer, joint=False), data=english)
    with pytest.raises(ValueError, match=r"init_encoder=.* ja.* en"):
        TranslationTask(apart, None, print)
