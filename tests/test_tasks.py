"""What a BERT, a classifier and a language model say; which texts each task learns from and is scored on."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest.mock import Mock

import pytest
import sacrebleu
import torch
from torch import Tensor
from transformers import BertForMaskedLM, BertModel, PreTrainedModel

from config.data import (
    BatchConfig,
    CleanConfig,
    DataConfig,
    LabelledConfig,
    MaskingConfig,
    MonolingualConfig,
    StreamConfig,
    TokenizerConfig,
)
from config.model import BertConfig, ClassifierConfig, TransformerConfig
from config.search import SamplingConfig, SearchConfig
from config.training import TranslationTrainingConfig
from const.token import BOS_ID, EOS_ID
from models.bert import BertForPreTraining
from models.transformer_xl import TransformerXL
from tests import hugging_face
from tests.tiny import (
    BERT,
    JAPANESE,
    LABELS,
    MODEL,
    TEXT,
    TOKENIZER,
    XL,
    bert_run,
    classifier_run,
    english,
    enliven,
    language_run,
    tokenizers,
)
from tests.tree import assert_drawn_by
from utils.config import ClassificationConfig, LanguageConfig, MaskedLanguageConfig, TranslationConfig
from utils.dataset.ids import cached_tokenizer, training_tokens
from utils.dataset.labelled import LabelledText
from utils.dataset.monolingual import StreamSampler, prepare_monolingual
from utils.file import write_lines
from utils.load import TrainedClassifier, TrainedLanguageModel, load_classifier, load_language_model, load_run
from utils.run import ATTENTION, TEST, TRANSLATIONS, WEIGHTS, create_run
from utils.search.translator import Translator
from utils.task import classification, translation
from utils.task import task as task_module
from utils.task.bert import MASK, MaskedLanguageTask, MaskFiller, fill_in
from utils.task.classification import ClassificationTask, classify, confusion, labelled_batches, summary
from utils.task.language import LanguageTask, continuations, effective_memory, generate, perplexity_by_memory
from utils.task.task import Task, refuse_unknown, write_scores
from utils.task.translation import TranslationTask
from utils.text.tokenizer import Tokenizer, train_tokenizer
from utils.training.checkpoint import write_weights
from utils.training.loss import TranslationObjective, mean_loss
from utils.training.schedule import Progress, Rank

MASK_ID = len(JAPANESE)
ENGLISH = english()
PROMPT = "There is an old"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> MaskFiller:
    return MaskFiller.of_run(bert_run(tmp_path_factory.mktemp("pickles")))


@pytest.fixture(scope="module")
def sorter(tmp_path_factory: pytest.TempPathFactory) -> TrainedClassifier:
    return load_classifier(classifier_run(tmp_path_factory.mktemp("pickles")))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedLanguageModel:
    return load_language_model(language_run(tmp_path_factory.mktemp("pickles")))


@torch.no_grad()
def test_candidates_are_the_likeliest_of_the_whole_networks_prediction(reader: MaskFiller) -> None:
    ids = [BOS_ID, 7, MASK_ID, 9, 12, MASK_ID, EOS_ID]
    probs = reader.net(torch.tensor([ids])).tokens[0].softmax(-1)
    guesses = fill_in(reader.net, ids, MASK_ID, 99)
    for place, row in zip((2, 5), guesses, strict=True):
        assert [p for _, p in row] == pytest.approx(probs[place].sort(descending=True).values.tolist(), rel=1e-4)
        assert [p for _, p in row] == pytest.approx([probs[place, token].item() for token, _ in row], rel=1e-4)
    # a token that may not stand there keeps its probability
    never = {token for row in guesses for token, _ in row[:2]}
    expected = [[candidate for candidate in row if candidate.token not in never] for row in guesses]
    assert fill_in(reader.net, ids, MASK_ID, 99, never) == expected


def pieces(reader: MaskFiller, text: str) -> list[str]:
    every = [*reader.tokenizer.tokens(range(len(reader.tokenizer))), MASK]
    return [every[i] for i in reader.ids(text)]


def other(reader: MaskFiller, tokenizer: Tokenizer) -> MaskFiller:
    """The same for a text that is split otherwise."""
    return reader._replace(tokenizer=tokenizer, mask=len(tokenizer), window=99)


@pytest.mark.parametrize(("kind", "normalization"), [("unigram", "nmt_nfkc"), ("bpe", "identity"), ("bpe", "nfkc_cf")])
def test_text_around_masks_is_split_as_within_a_sentence(reader: MaskFiller, kind: str, normalization: str) -> None:
    config = TokenizerConfig(kind, 90, normalization=normalization)  # type: ignore[arg-type]
    reader = other(reader, train_tokenizer(config, [*TEXT.src, *TEXT.tgt]))

    def split(text: str) -> list[str]:
        return reader.tokenizer.tokens(reader.tokenizer.encode([text])[0])

    assert pieces(reader, f"京都に{MASK}") == ["<s>", *split("京都に"), MASK, "</s>"]
    (first, *behind) = split("xに古い寺が")  # x is unknown
    assert first == "▁"
    assert pieces(reader, f"{MASK}に古い寺が") == ["<s>", MASK, *behind[1:], "</s>"]
    assert "▁" not in "".join(pieces(reader, f"京都に{MASK}寺が{MASK}。")[3:])
    # a space belongs to what stands behind it, be it hidden
    is_old = split("There is old")[len(split("There")) :]
    assert is_old[0].startswith("▁")
    expected = ["<s>", MASK, *is_old, MASK, MASK, "</s>"]
    assert pieces(reader, f"{MASK} is old {MASK} {MASK}") == expected
    assert pieces(reader, f" {MASK} is old {MASK}{MASK} ") == expected
    # an unknown character behind a mask is not lost
    assert pieces(reader, f"{MASK}龍に{MASK}鳳龍。")[1:-1] == [MASK, "<unk>", "に", MASK, "<unk>", "。"]
    reader = other(reader, train_tokenizer(TokenizerConfig("word", min_freq=1), TEXT.tgt))
    assert pieces(reader, f"There is {MASK} old{MASK}in")[1:-1] == ["There", "is", MASK, "old", MASK, "in"]


def test_where_the_network_expects_a_bare_space_it_is_asked_what_follows(reader: MaskFiller, tmp_path: Path) -> None:
    space, bridge = map(JAPANESE.tokens(range(MASK_ID)).index, "▁橋")
    assert reader.space == space
    probs = [0.0] * (MASK_ID + 1)
    probs[space], probs[bridge] = 0.75, 0.25
    expecting = MaskFiller.of_run(bert_run(tmp_path, probs))
    ids = [BOS_ID, MASK_ID, 7, MASK_ID, EOS_ID]
    asked = [BOS_ID, space, MASK_ID, 7, space, MASK_ID, EOS_ID]
    assert expecting.spaced(ids) == asked
    assert expecting._replace(window=7).spaced(ids) == asked
    assert expecting._replace(window=6).spaced(ids) == ids
    assert expecting._replace(space=None).spaced(ids) == ids
    with torch.no_grad():
        first, second = fill_in(reader.net, ids, MASK_ID, 1)
        reader = reader._replace(space=second[0].token)
        assert first[0].token != second[0].token
    assert reader.spaced(ids) == [BOS_ID, MASK_ID, 7, second[0].token, MASK_ID, EOS_ID]


def test_the_text_is_filled_in_with_the_best(reader: MaskFiller) -> None:
    reader = other(reader, tokenizers().tgt)
    net = BertForPreTraining(BERT, reader.mask + 1).eval()
    enliven(net)
    reader = reader._replace(net=net, space=None)
    text = f"There {MASK} a {MASK}"
    ids = reader.ids(text)
    best = iter([row[0].token for row in fill_in(net, ids, reader.mask, 3, reader.silent)])
    whole = [next(best) if token == reader.mask else token for token in ids]
    filled, *table = reader.answer(text, 3).splitlines()
    assert filled == reader.tokenizer.decode([whole])[0]
    assert filled.startswith("There")
    assert MASK not in filled
    assert len(table) == 3


PIECES = ["[PAD]", "[UNK]", "[MASK]", "[SEP]", "[CLS]", "kyoto", "is", "old", "##er", "a", "city", "京", "都", "は"]


def hugging_face_folder(model_type: type[PreTrainedModel], folder: Path) -> Path:
    model = hugging_face.lively(model_type, hugging_face.config(vocab_size=len(PIECES)))
    model.type(torch.float32).save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES), encoding="utf-8")
    return folder


@torch.no_grad()
def test_a_bert_of_hugging_face_fills_in(tmp_path: Path) -> None:
    folder = hugging_face_folder(BertForMaskedLM, tmp_path / "bert")
    reader = MaskFiller.of_hugging_face(folder)
    assert reader.ids("Kyoto is [MASK]city 京") == [4, 5, 6, 2, 10, 11, 3]
    ids = [4, 5, 6, 2, 8, 3]  # [MASK]er is no word of theirs: what stands behind a mask is split by itself
    theirs = BertForMaskedLM.from_pretrained(folder)
    theirs.train(False)
    probs = theirs(torch.tensor([ids])).logits[0, 3].softmax(-1)
    (guesses,) = fill_in(reader.net, ids, reader.mask, 3, reader.silent)
    likely = [i for i in probs.argsort(descending=True).tolist() if i > 4][:3]
    assert [token for token, _ in guesses] == likely
    assert [p for _, p in guesses] == pytest.approx(probs[likely].tolist(), rel=1e-3)
    with pytest.raises(ValueError, match="has no masked-language head: give a folder"):
        MaskFiller.of_hugging_face(hugging_face_folder(BertModel, tmp_path / "headless"))


@torch.no_grad()
def test_classes_come_with_the_networks_probabilities(sorter: TrainedClassifier) -> None:
    for text in (*TEXT.src[::20], TEXT.src[0] * 2):
        ids = [BOS_ID, *JAPANESE.encode([text])[0][:10], EOS_ID]  # no more than 12 are learned from
        probs = sorter.net(torch.tensor([ids]))[0].softmax(-1)
        guesses = classify(sorter, text, 2)
        likely = probs.argsort(descending=True)[:2].tolist()
        assert [label for label, _ in guesses] == [LABELS[i] for i in likely]
        assert [p for _, p in guesses] == pytest.approx(probs[likely].tolist(), rel=1e-4)
    assert sum(p for _, p in classify(sorter, "", 9)) == pytest.approx(1)


def test_a_file_is_counted_as_text_by_text(sorter: TrainedClassifier, tmp_path: Path) -> None:
    files = tmp_path / "text", tmp_path / "labels"
    for file, lines in zip(files, (TEXT.src[:50], [LABELS[i % 3] for i in range(50)]), strict=True):
        write_lines(file, lines)
    expected = torch.zeros(3, 3, dtype=torch.long)
    for i, text in enumerate(TEXT.src[:50]):
        expected[i % 3, LABELS.index(classify(sorter, text, 1)[0].label)] += 1
    counted = confusion(sorter.net, labelled_batches(sorter, *files), 3)
    torch.testing.assert_close(counted, expected)
    taken = torch.tensor([[900, 7, 0], [30, 50, 1], [0, 12, 0]])
    accuracy, confused = summary(taken, LABELS)
    assert accuracy == "accuracy 95.00 % of 1,000 texts"
    assert "garden taken for bridge (30), river taken for garden (12)" in confused


IDS = [BOS_ID, 5, 4, 7]


def model_of(vocab: int = 9, seed: int = 0) -> TransformerXL:
    torch.manual_seed(seed)
    model = TransformerXL(replace(XL, memory_length=100), vocab).eval()
    enliven(model, seed)
    return model


@torch.no_grad()
def probabilities(model: TransformerXL, text: list[int]) -> Tensor:
    """Of what may follow a text, read from its beginning."""
    hidden, _ = model(torch.tensor([text]), model.start(1, torch.device("cpu")))
    logits = model.output(hidden[0, -1])
    logits[:EOS_ID] = float("-inf")  # <pad>, <unk> and <s> are not said
    return logits.softmax(-1)


def test_greedy_says_the_likeliest_token_each_time_until_so_many_sentences_end() -> None:
    model, text = model_of(8), IDS[:]
    while len(text) < len(IDS) + 12 and text.count(EOS_ID) < 2:
        text.append(int(probabilities(model, text).argmax()))
    greedy = generate(model, IDS, 12, 2)
    assert greedy == [text[len(IDS) :]]
    for sampling in (SamplingConfig(3, temperature=1e-4), SamplingConfig(3, top_k=1), SamplingConfig(3, top_p=1e-6)):
        assert generate(model, IDS, 12, 2, sampling) == greedy * 3


def test_the_same_seed_says_the_same_however_many_others_there_are_and_who_has_ended_changes_nothing() -> None:
    model, asked = model_of(), [SamplingConfig(3, seed=1), SamplingConfig(9, seed=1), SamplingConfig(9, seed=2)]
    few, many, other = (generate(model, IDS, 9, 2, sampling) for sampling in asked)
    assert many[:3] == few
    assert many != other
    shorter = generate(model, IDS, 9, 1, asked[1])
    assert [said[: said.index(EOS_ID) + 1] if EOS_ID in said else said for said in many] == shorter
    assert len({len(said) for said in shorter}) > 1


@pytest.mark.parametrize("sampling", [SamplingConfig(3000), SamplingConfig(3000, 0.6, top_k=3)])
def test_continuations_are_drawn_by_the_product_of_their_tokens(sampling: SamplingConfig) -> None:
    model = model_of(8)
    expected: dict[tuple[int, ...], float] = {}
    open_ends: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while open_ends:
        said, p = open_ends.pop()
        if len(said) == 3 or said[-1:] == (EOS_ID,):
            expected[said] = p
            continue
        probs = probabilities(model, [*IDS, *said]) ** (1 / sampling.temperature)
        if sampling.top_k:
            probs[probs < probs.sort().values[-sampling.top_k]] = 0
        probs /= probs.sum()
        open_ends += [((*said, token), p * q) for token, q in enumerate(probs.tolist()) if q > 0]
    drawn = generate(model, IDS, 3, sampling=sampling)
    assert_drawn_by(Counter(map(tuple, drawn)), expected)


@pytest.mark.parametrize("memory_length", [0, 3])
def test_it_remembers_as_much_as_it_is_told(memory_length: int) -> None:
    """A token said on what little is remembered is the likeliest of a step from a memory of that length."""
    model = model_of(40, 1)
    memory = model.start(1, torch.device("cpu"))
    said: list[int] = []
    with torch.no_grad():
        hidden, memory = model(torch.tensor([IDS]), memory, memory_length=memory_length)
        logits = model.output(hidden[:, -1])
        while len(said) < 10 and said[-1:] != [EOS_ID]:
            said.append(int(logits[0, EOS_ID:].argmax()) + EOS_ID)
            assert memory.document.size(1) <= memory_length
            logits, memory = model.step(torch.tensor(said[-1:]), memory, memory_length)
    assert generate(model, IDS, 10, memory_length=memory_length) == [said]


def test_the_text_is_the_prompt_and_what_the_model_says_behind_it(trained: TrainedLanguageModel) -> None:
    ids = [BOS_ID, *ENGLISH.encode([PROMPT])[0]]  # no </s>: the sentence goes on
    for sampling in (None, SamplingConfig(4, 0.8, 20, 0.9, 3)):
        said = generate(trained.net, ids, 9, 2, sampling, 4)
        continued = continuations(trained, PROMPT, 9, 2, sampling, 4)
        assert continued == ENGLISH.decode([ids + tokens for tokens in said])
        assert all(text.startswith(PROMPT) and len(text) > len(PROMPT) for text in continued)
        assert len(set(continued)) == (4 if sampling else 1)
    # as far back as in training: the last of 5 positions had 4 of its segment and 20 of memory before it
    own = continuations(trained, TEXT.tgt[5], 12, 9, sampling)
    assert own == continuations(trained, TEXT.tgt[5], 12, 9, sampling, 24)
    assert own != continuations(trained, TEXT.tgt[5], 12, 9, sampling, XL.memory_length)


@pytest.fixture
def model(tmp_path: Path) -> TrainedLanguageModel:
    """It tests on the last lines of its text."""
    text = tmp_path / "my.en"
    write_lines(text, TEXT.tgt)
    folder = language_run(tmp_path / "pickles")
    trained = load_language_model(folder)
    training = replace(trained.config.training, precision="fp32", device="cpu")
    data = MonolingualConfig(text=text, language="en", held_out=6)
    config = replace(trained.config, data=data, training=training)
    config.save(folder / "config.yaml")
    return trained._replace(config=config)


def test_the_loss_is_that_of_one_long_reading(model: TrainedLanguageModel, tmp_path: Path) -> None:
    corpus = prepare_monolingual(model.config.data, tmp_path)
    tokens = corpus.tokens("test", model.vocabulary, print)
    (batch,) = StreamSampler(tokens, StreamConfig(1, 1000)).all()
    hidden, _ = model.net(batch.ids, model.net.start(1, torch.device("cpu")))
    real = batch.target[0] != 0
    logits = model.net.output(hidden[0, real])
    expected = torch.nn.functional.cross_entropy(logits, batch.target[0, real]).item()
    (forgetful, _), (remembering, nats) = perplexity_by_memory(model, "test", 4, [0, 1000], tmp_path)
    torch.testing.assert_close(nats, torch.nn.functional.cross_entropy(logits, batch.target[0, real], reduction="none"))
    assert math.log(remembering.perplexity) == pytest.approx(expected, rel=1e-5)
    assert math.log(forgetful.perplexity) != pytest.approx(expected, rel=1e-3)
    # held out are six sentences, each of seven words, a full stop and an end
    words = sum(len(line.removesuffix(".").split()) + 2 for line in TEXT.tgt[-6:])
    assert math.log(remembering.word_ppl) * words == pytest.approx(expected * int(real.sum()), rel=1e-5)


def test_more_memory_is_effective_while_it_gains_a_hundredth() -> None:
    """By hand: four tokens, of which the last two are hard without memory."""
    losses = {0: [1.0, 1.0, 5.0, 4.0], 16: [1.0, 1.1, 3.0, 3.98], 8: [1.0, 1.0, 3.0, 4.0], 32: [1.0, 0.5, 3.1, 3.98]}
    of = {length: torch.tensor(nats) for length, nats in losses.items()}
    assert effective_memory(of, 1) == 8  # perplexity falls by 39 %, then rises by 2
    assert effective_memory(of, 0.5) == 8  # by 63 and 1.0: just not a hundredth
    assert effective_memory({8: of[8], 16: of[16], 32: of[32]}, 1) == 8
    assert effective_memory({16: of[16], 32: of[32]}, 1) == 32  # the longest of all: it falls by 12 %
    assert effective_memory(of, 0.1) == 8  # the hardest: from 5 to 3, and no further


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
    monkeypatch.setattr(task_module, "prepare_monolingual", partial(prepare_monolingual, root=tmp_path))
    monkeypatch.setattr(classification, "cached_tokenizer", partial(cached_tokenizer, root=tmp_path))
    monkeypatch.setattr(LabelledText, "cached", partial(LabelledText.cached, root=tmp_path))
    return tmp_path


def monolingual(root: Path) -> MonolingualConfig:
    return MonolingualConfig(text=root / "text", dev_text=root / "dev_text", test_text=root / "test_text")


def labelled(root: Path) -> LabelledConfig:
    return LabelledConfig(*(root / f"{split}{column}" for split in WORDS for column in ("text", "labels")))


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
    ("task_type", "config_of"),
    [(MaskedLanguageTask, masked), (ClassificationTask, classifier), (LanguageTask, language_model)],
)
def test_what_is_learned_from_what_chooses_and_what_is_scored_are_three_texts(
    root: Path, task_type: Any, config_of: Any
) -> None:
    task = task_type(config_of(root), None, print)
    net = task.build()
    tokenizer = getattr(task.vocabulary, "src", None) or task.vocabulary.tokenizer
    assert {tokenizer.decode([[i]])[0] for i in range(EOS_ID + 1, len(tokenizer))} == KNOWN[""]
    assert words_of(task, task.sampler.all()) == KNOWN[""]
    for split in ("dev", "test"):
        batches, validate = task.validation(net, split)
        assert words_of(task, batches) == KNOWN[f"{split}_"]
        if task_type is LanguageTask:  # words are counted in the text that is scored: four lines
            n_words = 4 * (len(WORDS[f"{split}_"].split()) + 1)
            n_tokens = sum(batch.target_tokens for batch in batches)
            assert validate(1.0).scores["word_ppl"] == pytest.approx(math.exp(n_tokens / n_words))


def test_berts_of_several_seeds_are_scored_on_the_same_examples(root: Path) -> None:
    def examples(seed: int) -> list[list[Any]]:
        config = masked(root)
        task = MaskedLanguageTask(replace(config, training=replace(config.training, seed=seed)), None, print)
        return [[batch.ids.tolist() for batch in batches] for batches in (task.held_out["dev"], task.sampler.all())]

    (dev, train), (same_dev, other_train) = examples(1), examples(2)
    assert dev == same_dev
    assert train != other_train


def shortened(config: Any, **model: Any) -> Any:
    return replace(config, model=replace(config.model, **model))


def test_what_cannot_be_learned_is_refused(root: Path) -> None:
    pairs = replace(masked(root), masking=MaskingConfig(next_sentence=True))
    joint = TranslationConfig(model=replace(MODEL, init_encoder=bert_run(root / "runs")))
    apart = replace(joint, tokenizer=replace(joint.tokenizer, joint=False))
    for task_type, config, words in (
        (MaskedLanguageTask, shortened(pairs, n_segments=1), "n_segments=1 has no room .*--model.n_segments 2"),
        (ClassificationTask, shortened(classifier(root), max_length=15), "model.max_length=15"),
        (TranslationTask, replace(joint, tokenizer=TokenizerConfig(joint=True)), "init_encoder=.* give --tokenizer.jo"),
        (TranslationTask, replace(apart, data=DataConfig(src_lang="en", tgt_lang="ja")), "init_encoder=.* ja.* en"),
    ):
        with pytest.raises(ValueError, match=words):
            task_type(config, None, print)  # type: ignore[arg-type]
    (root / "test_text").write_text("京都\n", encoding="utf-8")  # refused before the training, not at its end
    with pytest.raises(ValueError, match=r"^1 sentences in 1 documents cannot give both pairs that follow"):
        MaskedLanguageTask(pairs, None, print)


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

    def refused(self, words: str, **changes: Any) -> None:
        with pytest.raises(ValueError, match=words):
            self.task(**changes)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Texts:
    """Caches go where the texts are."""
    files: dict[str, Any] = {}
    for split, text in SPLITS.items():
        for side in ("src", "tgt"):
            files[f"{split}{side}"] = file = tmp_path / f"{split or 'train_'}{side}"
            write_lines(file, getattr(text, side))
    for name in ("prepare_corpus", "refuse_other_languages"):
        monkeypatch.setattr(translation, name, partial(getattr(translation, name), root=tmp_path))
    return Texts(replace(CONFIG, data=DataConfig(**files)), tmp_path)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_sub_words_of_the_next_epoch_are_sampled_ahead_for_a_gpu(
    device: str, texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Mock(side_effect=training_tokens)
    monkeypatch.setattr(translation, "training_tokens", asked)
    monkeypatch.setattr(translation, "pick_device", lambda _: torch.device(device))
    texts.task()
    assert asked.call_args.kwargs["ahead"] == (device == "cuda")


def test_a_validation_translates_the_first_dev_sentences_greedily(
    texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = texts.task()
    searches: list[SearchConfig] = []
    find = Translator.find

    def watched(self: Translator, *given: Any) -> Any:
        searches.append(self.search)
        return find(self, *given)

    monkeypatch.setattr(Translator, "find", watched)
    assert isinstance(task.objective, TranslationObjective)
    assert (task.objective.smoothing, task.objective.r_drop) == (0.3, 2.0)
    _, validate = task.validation(task.build())
    validation = validate(1.0)
    assert [sample.source for sample in validation.samples] == DEV.src[:3]
    assert searches == [replace(CONFIG.search, beam_size=1, by_sentence=False)]
    rows = [row[row > EOS_ID].tolist() for batch in task.held_out["dev"] for row in batch.tgt]
    assert sorted(task.vocabulary.tgt.decode(rows)) == sorted(DEV.tgt)


@pytest.mark.parametrize(("better", "risk", "kept"), [(True, 1.0, True), (False, 1.0, False), (False, 1000.0, True)])
def test_what_is_better_for_dev_lines_of_several_sentences_is_kept(
    texts: Texts, monkeypatch: pytest.MonkeyPatch, better: bool, risk: float, kept: bool
) -> None:
    monkeypatch.setattr("utils.task.translation._WORTH_A_RISK", risk)
    several = [a + b for a in TEXT.src[:5] for b in TEXT.src[5:9]]
    Path(texts.config.data.dev_src or "").write_text("".join(f"{line}\n" for line in several), encoding="utf-8")
    Path(texts.config.data.dev_tgt or "").write_text("a b c d\n" * len(several), encoding="utf-8")
    task, folder, said = texts.task(), texts.root / "run", list[str]()
    folder.mkdir()

    def scored(self: Translator, lines: Sequence[str]) -> list[Mock]:
        assert list(lines) == several
        return [Mock(text="a b c d" if self.search.by_sentence == better else "a b c") for _ in lines]

    monkeypatch.setattr(Translator, "translate", scored)
    task.choose_on_dev(task.build(), folder, said.append)
    assert task.config.search.by_sentence is kept
    assert TranslationConfig.load(folder / "config.yaml").search.by_sentence is kept
    assert task.config.search.max_perplexity == 0  # too few lines to know
    assert said[0].startswith("20 dev lines of several sentences")


def test_what_one_of_a_hundred_dev_translations_exceeds_is_remarked_on(
    texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(texts.config.data.dev_src or "").write_text("寺\n" * 200, encoding="utf-8")
    Path(texts.config.data.dev_tgt or "").write_text("a\n" * 200, encoding="utf-8")
    task, folder = texts.task(), texts.root / "run"
    folder.mkdir()
    perplexities = [Mock(perplexity=1 + n / 100) for n in range(200)]
    monkeypatch.setattr(Translator, "translate", lambda _, lines: perplexities[: len(lines)])
    task.choose_on_dev(task.build(), folder, print)
    assert task.config.search.max_perplexity == pytest.approx(2.98, abs=0.02)
    assert TranslationConfig.load(folder / "config.yaml") == task.config


def test_the_test_text_is_scored_and_its_translations_are_written(
    texts: Texts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = texts.task()
    folder = create_run(task.config, task.vocabulary, root=texts.root / "runs")
    net = task.build().eval()
    write_weights(net.state_dict(), folder / WEIGHTS, Rank(0.0), n_averaged=3)
    batches, validate = task.validation(net, "test")
    with torch.no_grad():
        test = validate(mean_loss(partial(TranslationObjective(), net), batches))
    progress = Progress(step=9, target_tokens=1234, seconds=90.0, best_step=6)
    write_scores(task, net, test, progress, folder)
    task.show(net, folder, test, print)
    translations = (folder / TRANSLATIONS).read_text(encoding="utf-8").splitlines()
    run = load_run(folder, torch.device("cpu"))
    assert translations == [translation.text for translation in run.translator(CONFIG.search).translate(TEST_TEXT.src)]
    result = json.loads((folder / TEST).read_text(encoding="utf-8"))
    assert result["bleu"] == pytest.approx(sacrebleu.corpus_bleu(translations, [TEST_TEXT.tgt]).score)
    assert result["perplexity"] == pytest.approx(math.exp(test.loss))
    facts = {"name": "tiny", "seed": 7, "direction": "ja-en", "beam": 4, "steps": 9, "best_step": 6, "averaged": 3}
    facts |= {"target_tokens": 1234, "minutes": 1.5}
    assert facts.items() <= result.items()
    assert (folder / ATTENTION).is_file()
    # a picture is only decoration
    monkeypatch.setattr(translation, "draw_cross_attention", Mock(side_effect=ZeroDivisionError))
    task.show(net, folder, test, print)
    assert "continues without a picture of its attention" in capsys.readouterr().out


def test_a_run_of_tokenized_text_keeps_what_separates_words(texts: Texts) -> None:
    assert len(texts.task().vocabularies()) == 1
    for side in ("src", "dev_src", "test_src"):
        file = getattr(texts.config.data, side)
        file.write_text("".join(" ".join(line) + "\n" for line in file.read_text().splitlines()), encoding="utf-8")
    task = texts.task(data=replace(texts.config.data, pre_tokenized=True))
    folder = create_run(task.config, *task.vocabularies(), root=texts.root / "runs")
    write_weights(task.build().state_dict(), folder / WEIGHTS, Rank(0.0))
    plain, words = (load_run(folder, torch.device("cpu"), plain).tokenizers.src for plain in (True, False))
    line = TEST_TEXT.src[0]
    assert plain.encode([line]) == words.encode([" ".join(line)]) != words.encode([line])


def test_a_table_takes_the_place_of_two_files_and_is_checked_like_them(texts: Texts) -> None:
    data, table = texts.config.data, texts.root / "train.tsv"
    rows = [f"{src}\t{tgt}\n" for src, tgt in zip(TRAIN.src, TRAIN.tgt, strict=True)]
    table.write_text("".join(rows), encoding="utf-8")
    tabular = replace(data, src=None, tgt=None, pairs=table)
    assert texts.task(data=tabular).fingerprint == texts.task().fingerprint
    table.write_text("".join("\t".join(reversed(row[:-1].split("\t"))) + "\n" for row in rows), encoding="utf-8")
    texts.refused(f"is not in ja: 0% .*; are the columns of {table} swapped, or without names", data=tabular)
    table.write_text("en\tja\n" + table.read_text(encoding="utf-8"), encoding="utf-8")
    assert texts.task(data=tabular).fingerprint == texts.task().fingerprint


def test_tags_of_texts_are_in_the_vocabulary_or_refused(texts: Texts) -> None:
    data, joint = texts.config.data, replace(texts.config.tokenizer, joint=True, tag=True, vocab_size=90)
    more: dict[str, Any] = {"more_src": data.src, "more_tgt": data.tgt, "more_tag": "bt"}
    law = replace(data, tag="law", both_directions=True, clean=CleanConfig(drop_duplicates=False), **more)
    task = texts.task(data=law, tokenizer=joint)
    folder = create_run(task.config, *task.vocabularies(), root=texts.root / "runs")
    assert task.identity["tags"] == ["bt", "law"]
    assert "tags" not in texts.task().identity
    begins = {tuple(task.vocabulary.tgt.tokens(row[:2])) for batch in task.sampler.epoch(0) for row in batch.src}
    assert begins == {(language, tag) for language in ("<2ja>", "<2en>") for tag in ("<law>", "<bt>")}
    for text in ("dev", "test"):
        held_out = (row for batch in task.held_out[text] for row in batch.src)
        assert {tuple(task.vocabulary.tgt.tokens(row[:2])) for row in held_out} == {("<2en>", "<law>")}
    other = texts.task(data=replace(law, tag=None), tokenizer=joint)
    assert task.fingerprint != other.fingerprint

    def begun(**tags: Any) -> TranslationTask:
        return TranslationTask(replace(task.config, data=replace(law, **tags)), folder, print)

    assert begun(tag="bt", more_tag=None).vocabulary.tags == ["<2en>", "<bt>"]
    assert begun(tag=None).vocabulary.tags == ["<2en>"]
    for tags in ({"tag": "it"}, {"more_tag": "it"}):
        with pytest.raises(ValueError, match=r"^tag=it, but the vocabulary knows bt, law: .* or train a new run"):
            begun(**tags)
    words = TokenizerConfig("word", joint=False)
    texts.refused("^tag bt is a piece, and kind=word has none", tokenizer=words, data=replace(data, **more))


def test_sides_in_each_others_language_are_refused_before_a_text_is_cleaned_or_split(texts: Texts) -> None:
    data = texts.config.data
    texts.refused("train_src is not in de: 100% .* is --data.src_lang wrong", data=replace(data, src_lang="de"))
    for side in ("", "more_", "test_"):
        swapped: dict[str, Any] = {f"{side}src": data.tgt, f"{side}tgt": data.src}
        words = f"are --data.{side}src and --data.{side}tgt swapped"
        texts.refused(words, data=replace(data, **swapped))
        texts.refused(words, data=replace(data, dev_src=None, dev_tgt=None, **swapped))
    assert not list(texts.root.glob("*/"))
    texts.refused("^tie=all .* give --tokenizer.joint true", model=replace(MODEL, tie="all"))


LONG_BERT = BertConfig(d_model=16, n_heads=2, d_ff=32, n_layers=1, max_length=40)


@pytest.mark.parametrize(
    ("model", "option", "sides"),
    [
        (replace(MODEL, positions="learned", max_length=40), "model.max_length", ("src", "tgt")),
        (replace(MODEL, bert=LONG_BERT, n_encoder_layers=0), "model.bert.max_length", ("src",)),
    ],
    ids=["learned", "BERT"],
)
def test_lines_that_a_learned_table_of_positions_has_no_room_for_are_refused(
    texts: Texts, model: TransformerConfig, option: str, sides: Sequence[str]
) -> None:
    changes = {"model": model, "batch": BatchConfig(max_tokens=40)}
    texts.task(**changes)
    texts.refused(rf"^max_tokens=41 .* {option}=40: give --{option} 41", model=model, batch=BatchConfig(max_tokens=41))
    for split, side in zip(("dev", "test"), sides, strict=False):
        file = texts.root / f"{split}_{side}"
        before = file.read_text(encoding="utf-8")
        file.write_text(before.replace("\n", 9 * before.split("\n")[0] + "\n", 1), encoding="utf-8")
        texts.refused(rf"{file}, line 1 takes \d+ positions.* {option}=40: give --{option}", **changes)
        file.write_text(before, encoding="utf-8")


def test_a_text_that_the_vocabulary_cannot_write_is_refused(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=16), ["abcdefgh"] * 9)
    said: list[str] = []

    def check(text: str, source: Path | None) -> None:
        (tmp_path / "text").write_text(text, encoding="utf-8")
        reads = {"source": (tokenizer, tmp_path / "text")}
        refuse_unknown(cast(Task, SimpleNamespace(reads=reads)), source, said.append)

    check("a b c d e f g h a z\n", None)
    assert said == ["Unknown tokens: 5.00% of the source"]  # a space before each letter
    for source, remedy in ((None, "raise --tokenizer.vocab_size"), (Path("run"), "it was learned for run; train")):
        with pytest.raises(ValueError, match=rf"^25% of the tokens of .*/text are unknown to the vocabulary: {remedy}"):
            check("a z\n", source)
