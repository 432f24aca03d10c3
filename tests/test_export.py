"""Exports and imports: CTranslate2 and Hugging Face as oracles, safetensors bit for bit, and export.py itself."""

import contextlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast
from zipfile import ZipFile

import ctranslate2
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentencepiece import SentencePieceProcessor
from torch import Tensor, nn
from torch.nn import functional as F

import export
import translate
from config.data import BatchConfig, DataConfig, TokenizerConfig
from config.model import BertConfig, ClassifierConfig, TransformerConfig
from config.search import Bounds, SearchConfig
from const.path import EXPORTED, ROOT
from const.token import EOS_ID, PAD_ID, SPECIAL_TOKENS, UNK_ID
from layers.decoder_block import DecoderBlock
from models.bert import BertClassifier
from models.transformer import Transformer
from tests import hugging_face, tiny
from tests.hugging_face import VOCAB
from tests.tiny import MODEL, TEXT, Outcome, lively, outcome, run, sources, tokenizers, translating
from tests.tree import asked
from utils.config import TranslationConfig
from utils.dataset.batch import padded
from utils.dataset.embedded import generate
from utils.export.ctranslate2 import to_ctranslate2
from utils.export.engine import (
    CTranslate2Search,
    TranslatorSettings,
    load_exported,
)
from utils.export.hugging_face import WordPieceTokenizer, load_hugging_face_bert, load_theirs
from utils.export.pegasus import write_pegasus
from utils.export.safetensors import CONFIG, WEIGHTS, load_safetensors, write_safetensors
from utils.file import read_json, write_json
from utils.load import Run, load_run
from utils.search.beam import beam_search
from utils.search.forced import token_log_probs
from utils.search.inspection import Inspector
from utils.search.sampling import greedy_search
from utils.search.searcher import Request
from utils.text.tokenizer import TokenizerPair, WordTokenizer, train_tokenizers
from utils.text.words import WordPair, Words
from utils.training.checkpoint import write_weights
from utils.training.schedule import Rank

CPU = torch.device("cpu")
GREEDY = SearchConfig(beam_size=1)
SOURCES = tokenizers().src.encode(TEXT.src[::2])
UNTIED = replace(MODEL, tie="none")
BERT = BertConfig(d_model=16, n_heads=2, d_ff=24, n_layers=2, max_length=12, activation="mish", n_segments=3)


@cache
def learned(pair: Callable[[], TokenizerPair] = tokenizers) -> Transformer:
    """Trained for a second on half of the sentences: what it says is varied, confident, and ends."""
    src, tgt = padded(pair().src.encode(TEXT.src[::2])), padded(pair().tgt.encode(TEXT.tgt[::2]), bos=True)
    torch.manual_seed(1)
    model = Transformer(UNTIED, len(pair().src), len(pair().tgt))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        logits = model(src, tgt[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD_ID)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def learned_run(root: Path) -> Path:
    folder = run(root, UNTIED)
    write_weights(learned().state_dict(), folder / WEIGHTS, Rank(0.0))
    return folder


# ---- the network in CTranslate2


def attentive(config: TransformerConfig) -> Transformer:
    """What it says depends on the source more than on what it has said."""
    model = translating(config, seed=2)
    for block in cast(Sequence[DecoderBlock], model.decoder):
        for linear in (block.cross_attention.key_value, block.cross_attention.output):
            linear.weight.data *= 3
    return model


def exported(model: Transformer, folder: Path, pair: TokenizerPair | None = None) -> CTranslate2Search:
    to_ctranslate2(model, pair or tokenizers(), folder)
    return CTranslate2Search(folder, pair or tokenizers(), "cpu")


def any_pieces(draw: random.Random, *lengths: int) -> list[list[int]]:
    """Sequences that are no sentence."""
    return [[draw.choice(range(len(SPECIAL_TOKENS), len(tokenizers().tgt))) for _ in range(n)] for n in lengths]


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_first": False},
        {"tie": "all"},
        {"norm_first": False, "positions": "learned", "tie": "none"},
        {"positions": "learned", "tie": "none", "activation": "gelu"},
        {"positions": "rotary", "n_encoder_layers": 2},
        {"activation": "swish", "n_encoder_layers": 2},
        {"activation": "swiglu", "norm": "rms"},
    ],
    ids=str,
)
def test_ctranslate2_says_the_same_and_finds_it_as_likely(changes: dict[str, Any], tmp_path: Path) -> None:
    config, one, search = replace(MODEL, **changes), tokenizers().src, SearchConfig(1, no_repeat_ngram=1)
    pair = TokenizerPair(one, one) if config.tie == "all" else tokenizers()
    model = lively(config, len(one), len(one)) if config.tie == "all" else attentive(config)
    theirs, draw = exported(model, tmp_path, pair), random.Random(3)
    texts = SOURCES + any_pieces(draw, *range(1, 31))
    prefixes = any_pieces(draw, *draw.choices((0, 0, 1, 5), k=len(texts)))
    shortest = draw.choices((0, 0, 3, 9), k=len(texts))
    bounds = [Bounds(length, length + draw.randint(1, 11)) for length in shortest]
    requests = list(map(Request, texts, bounds, prefixes))
    ours = [found.ids for found in greedy_search(model, requests, search)]
    assert [found[0].ids for found in theirs(requests, search)] == ours
    assert len({tuple(ids) for ids in ours}) > 20
    targets = [[], [UNK_ID], *pair.tgt.encode(TEXT.tgt[::4])]
    texts = texts[: len(targets)]
    for row, other in zip(token_log_probs(model, texts, targets), theirs.log_probs(texts, targets), strict=True):
        assert other == pytest.approx(row, abs=1e-3)


@pytest.mark.parametrize(
    "search", [SearchConfig(1, 0.6), SearchConfig(2, 1.0, "length"), SearchConfig(5, -1.0)], ids=["1", "2", "5"]
)
def test_scores_are_log_probabilities_over_our_penalty(search: SearchConfig, tmp_path: Path) -> None:
    model, width, draw = deepcopy(learned()), search.beam_size, random.Random(2)
    with torch.no_grad():
        model.output.bias[:EOS_ID] = -50.0  # <pad>, <unk> and <s>, whose probability it would share out
    theirs, texts = exported(model, tmp_path), SOURCES[::2]
    bounds = [Bounds(0, draw.randint(1, 11)) for _ in texts]
    nothing: list[list[int]] = [[] for _ in texts]
    for prefixes in (nothing, any_pieces(draw, *draw.choices((0, 1, 5), k=len(texts)))):
        found = theirs(list(map(Request, texts, bounds, prefixes)), search)
        for source, bound, hypotheses in zip(texts, bounds, found, strict=True):
            log_probs = token_log_probs(model, [source] * len(hypotheses), [one.ids for one in hypotheses])
            expected = [sum(each) / search.penalty(len(each)) for each in log_probs]
            scores = [one.score for one in hypotheses]
            assert scores == pytest.approx(expected, abs=1e-3)
            assert scores == sorted(scores, reverse=True)
            assert len({tuple(one.ids) for one in hypotheses}) == len(hypotheses) <= width
            assert any(prefixes) or all(len(one.ids) < bound.max_length for one in hypotheses)
        assert sum(map(len, found)) > 0.4 * width * len(texts)


def test_a_beam_finds_what_ours_finds(tmp_path: Path) -> None:
    model, search, requests = learned(), SearchConfig(4, 0.6), [Request(source, Bounds(0, 40)) for source in SOURCES]
    ours = [found[0] for found in beam_search(model, requests, search, n_best=1)]
    theirs = [found[0] for found in exported(model, tmp_path)(requests, search)]
    assert sum(a.ids == b.ids for a, b in zip(ours, theirs, strict=True)) > 0.95 * len(SOURCES)
    assert sum(a.score - b.score for a, b in zip(ours, theirs, strict=True)) < 0.05 * len(SOURCES)


# ---- whole texts


TEXTS = ["", "".join(TEXT.src[:8]), "寺", "😀", "  ", "京都に古い寺" * 20, *TEXT.src[::3]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and its export."""
    root = tmp_path_factory.mktemp("pickles")
    folder = learned_run(root)
    export.export(folder, "ctranslate2", root / "exported")
    return folder, root / "exported"


def test_texts_are_cut_and_scored_as_ours(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    own, wide = load_run(folders[0], CPU), load_exported(folders[1], "cpu").translator
    ours, theirs = own.translator(GREEDY), load_exported(folders[1], "cpu", GREEDY)
    expected, found = ours.translate(TEXTS), theirs.translator.translate(TEXTS)
    for a, b in zip(expected, found, strict=True):
        assert [one.tokens for one in a.candidates] == [one.tokens for one in b.candidates]
        assert (a.text, a.unknown_tokens) == (b.text, b.unknown_tokens)
        assert [piece[:3] for piece in a.pieces] == [piece[:3] for piece in b.pieces]
    log_probs = (inspector.log_probs(expected) for inspector in (Inspector(ours, [own.model]), theirs))
    for row, other in zip(*log_probs, strict=True):
        assert other == pytest.approx(row, abs=1e-3)
    assert wide.search == own.config.search
    said = [one.text for one in wide.translate(TEXTS)]
    monkeypatch.setattr(CTranslate2Search, "tokens_per_batch", 100)
    assert [one.text for one in wide.translate(TEXTS)] == said != [one.text for one in found]
    search = SearchConfig(beam_size=6)
    by_score = load_exported(folders[1], "cpu", search).translator
    by_risk = replace(by_score, minimum_bayes_risk=True)
    assert [t.text for t in by_risk.translate(TEXTS)] != [t.text for t in by_score.translate(TEXTS)]


def test_settings_are_read_as_they_were_written_and_damage_is_named(folders: tuple[Path, Path], tmp_path: Path) -> None:
    written = json.loads((folders[1] / EXPORTED).read_text(encoding="utf-8"))
    search = {"beam_size": 3, "length_penalty": 1.5, "normalization": "length", "max_ratio": 1e-5}
    written["search"] = search | {"coverage_penalty": 0.2}  # which was removed since this was written
    (tmp_path / EXPORTED).write_text(json.dumps(written), encoding="utf-8")
    window, expected = load_run(folders[0], CPU).window, SearchConfig(3, 1.5, "length", max_ratio=1e-5)
    found = TranslatorSettings(folders[0].name, "ja", "en", window, MODEL.max_length, expected)
    assert TranslatorSettings.load(tmp_path) == found
    for change in ({"search": {"beam_size": 0}}, {"search": None}, {"more": 1}, {"window": ""}):
        (tmp_path / EXPORTED).write_text(json.dumps(written | change), encoding="utf-8")
        with pytest.raises(ValueError, match=f"{EXPORTED}, line .*{next(iter(change))}"):
            TranslatorSettings.load(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"CTranslate2 cannot load .* \(.*\): export the run again"):
        CTranslate2Search(tmp_path, tokenizers(), "cpu")


# ---- a Pegasus or Marian of Hugging Face

ONE = TokenizerConfig(vocab_size=100, character_coverage=1.0)


def snippet_of(folder: Path) -> str:
    """The Python by which its card says that it is used."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", (folder / "README.md").read_text(encoding="utf-8"), re.S | re.M)
    return code


def for_hugging_face(tokenizer: TokenizerConfig, model: TransformerConfig) -> Run:
    pair = train_tokenizers(tokenizer, [*TEXT.src, "ガパカハ"], TEXT.tgt, ("ja", "en"))
    config = TranslationConfig(
        name="tiny", data=DataConfig(corpus="files"), tokenizer=tokenizer, model=model, batch=BatchConfig(max_tokens=32)
    )
    return Run(Path("tiny"), config, pair, lively(model, len(pair.src), len(pair.tgt)))


def from_hugging_face(folder: Path) -> tuple[Any, Any]:
    """The model and the tokenizer, after nothing was missing."""
    model, loading = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values())
    return model, cast(Any, transformers.AutoTokenizer).from_pretrained(folder)


@torch.no_grad()
def farthest(run: Run, theirs: Any, src: Tensor, tgt: Tensor) -> float:
    """The largest difference of two logits."""
    mask = src != PAD_ID
    found = theirs(input_ids=src, attention_mask=mask.long(), decoder_input_ids=tgt).logits
    return float((found - run.transformer(src, tgt))[tgt != PAD_ID].abs().max())


def greedy(run: Run, theirs: Any, src: Tensor, **options: int) -> tuple[list[list[int]], list[list[int]]]:
    """What both say, without their special tokens."""
    search = SearchConfig(1, no_repeat_ngram=options.get("no_repeat_ngram_size", 0))
    requests = asked(src, [Bounds(0, run.config.model.max_length)] * len(src))
    ours = greedy_search(run.transformer, requests, search)
    found = theirs.generate(input_ids=src, attention_mask=(src != PAD_ID).long(), num_beams=1, **options)
    return [one.ids for one in ours], [[i for i in row if i >= len(SPECIAL_TOKENS)] for row in found.tolist()]


@pytest.mark.parametrize(
    ("tokenizer", "changes"),
    [
        (replace(ONE, kind="bpe"), {"d_model": 15, "n_heads": 3, "activation": "gelu"}),
        (replace(ONE, tag=True), {"norm_first": False, "n_encoder_layers": 2, "activation": "swish"}),
        (ONE, {"scale_embedding": False, "activation": "mish"}),
    ],
    ids=["Pegasus", "Marian", "unscaled"],
)
def test_hugging_face_splits_computes_and_says_the_same(
    tokenizer: TokenizerConfig,
    changes: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = for_hugging_face(tokenizer, replace(MODEL, tie="all", **changes))
    write_pegasus(run, tmp_path)
    theirs, reader = from_hugging_face(tmp_path)
    odd = ["  two  spaces ", "Ｋｙｏｔｏ ｶﾞﾊﾟ", "か\u3099\u200b", "☃☃ ☃ temple", "\ttab\u3000…", "a <2en> b<2ja>c"]
    odd += ["☃Ｋ ‘temple’ Tōkyō", "² ½ a²", "邉 −"]
    ids = run.tokenizers.src.encode([*TEXT.src, *TEXT.tgt, *odd])
    assert reader([*TEXT.src, *TEXT.tgt, *odd])["input_ids"] == [[*each, EOS_ID] for each in ids]
    assert reader.decode([*ids[7], EOS_ID], skip_special_tokens=True) == TEXT.src[7]
    src, tgt = padded(ids[::9]), padded(run.tokenizers.tgt.encode(TEXT.tgt[: len(ids[::9])]), bos=True)
    assert farthest(run, theirs, src, tgt) < 1e-5
    ours, found = greedy(run, theirs, src)
    assert found == ours
    assert max(map(len, ours)) == run.config.model.max_length - 1  # which ends it
    ours, found = greedy(run, theirs, src, no_repeat_ngram_size=1)
    assert found == ours
    assert len({tuple(each) for each in ours}) > 10
    snippet = snippet_of(tmp_path)
    capsys.readouterr()
    with contextlib.chdir(tmp_path):
        exec(snippet.replace("a sentence", TEXT.src[7]), {})
    said = theirs.generate(**reader(TEXT.src[7], return_tensors="pt"), num_beams=4, length_penalty=0.6)
    assert capsys.readouterr().out == reader.decode(said[0], skip_special_tokens=True) + "\n"


@pytest.mark.parametrize(
    ("tokenizer", "changes", "message"),
    [
        (ONE, {"positions": "rotary", "tie": "all"}, "positions=sinusoidal, not rotary"),
        (ONE, {"scale_attention": False, "tie": "all"}, "scale_attention=True, not False"),
        (ONE, {}, "tie=all, not target"),
        (ONE, {"bert": BERT, "n_encoder_layers": 0}, "no BERT"),
        (replace(ONE, kind="word"), {"tie": "all"}, "vocabularies there are of pieces"),
        (replace(ONE, normalization="nfkc"), {"tie": "all"}, "of pieces, with tokenizer.normalization=identity"),
    ],
    ids=["rotary", "unscaled", "untied", "bert", "words", "nfkc"],
)
def test_what_hugging_face_has_no_model_for_is_refused(
    tokenizer: TokenizerConfig, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    run = for_hugging_face(tokenizer, replace(MODEL, **changes))
    with pytest.raises(ValueError, match=rf"^tiny cannot be a Pegasus or Marian of Hugging Face: [^\n]*{message}"):
        write_pegasus(run, tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("to", ["ctranslate2", "Pegasus"])
def test_a_network_with_a_weight_that_has_no_place_there_is_refused(to: str, tmp_path: Path) -> None:
    run = for_hugging_face(ONE, replace(MODEL, tie="all"))
    block = cast(DecoderBlock, run.transformer.decoder[1])
    block.feed_forward.add_module("gate", nn.Linear(4, 4))
    write = partial(write_pegasus, run) if to == "Pegasus" else partial(to_ctranslate2, run.transformer, run.tokenizers)
    with pytest.raises(ValueError, match=r"no place for decoder\.1\.feed_forward\.gate\.weight of this network"):
        write(tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_trained_translator_is_the_same_at_hugging_face(tmp_path: Path) -> None:
    """The figures of docs/serving.md: the demo, shortened and with one vocabulary."""
    options = "--tokenizer.joint true --model.tie all --training.max_steps 200 --optimizer.warmup_steps 60"
    command = [sys.executable, "train.py", "--config", "demo", *options.split(), "--training.precision", "fp32"]
    places = {"MIYAKO_CORPUS": str(tmp_path / "corpus"), "MIYAKO_PICKLES": str(tmp_path / "pickles")}
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | places)
    run = load_run(next((tmp_path / "pickles").iterdir()), CPU)
    write_pegasus(run, tmp_path / "corpus")
    theirs, reader = from_hugging_face(tmp_path / "corpus")
    pairs = [pair for split in generate().values() for pair in split][:1000]
    for lines in map(list, zip(*pairs, strict=True)):
        assert reader(lines)["input_ids"] == [[*ids, EOS_ID] for ids in run.tokenizers.src.encode(lines)]
    texts = list(zip(*pairs[:200], strict=True))
    src, tgt = padded(run.tokenizers.src.encode(texts[0])), padded(run.tokenizers.tgt.encode(texts[1]), bos=True)
    difference = farthest(run, theirs, src, tgt)
    ours, found = greedy(run, theirs, src)
    different = len({tuple(ids) for ids in ours})
    print(f"logits differ by at most {difference:.1e}; {different} different translations, {len(ours)} the same")
    assert difference < 1e-4
    assert different > 20
    assert found == ours


# ---- safetensors


N_PIECES = len(tokenizers().tgt)
READER = replace(MODEL, n_encoder_layers=0, bert=BERT, init_encoder=Path("x"))
OTHER = replace(UNTIED, positions="learned", norm_first=False)


@torch.no_grad()
@pytest.mark.parametrize("config", [replace(MODEL, tie="all"), OTHER, READER], ids=["tied", "untied", "with a BERT"])
def test_a_translator_as_safetensors_says_the_same(config: TransformerConfig, tmp_path: Path) -> None:
    net, ids = lively(config, N_PIECES, N_PIECES), sources(3, 7)
    tokenizer = tokenizers().tgt
    write_safetensors(net, TokenizerPair(tokenizer, tokenizer), {"name": "京都"}, Rank(12.5), tmp_path)
    loaded, pair, facts = load_safetensors(tmp_path)
    assert loaded(ids, ids).equal(net(ids, ids))
    assert not loaded.training
    assert len({p.data_ptr() for p in loaded.parameters()}) == len({p.data_ptr() for p in net.parameters()})
    assert pair.src.tokens(range(N_PIECES)) == tokenizer.tokens(range(N_PIECES))
    assert (facts["architecture"], facts["name"], facts["d_model"]) == ("Transformer", "京都", 16)
    assert [facts[f"{name}_id"] for name in ("pad", "unk", "bos", "eos")] == [0, 1, 2, 3]
    assert "init_encoder" not in facts


def test_files_that_do_not_fit_or_are_damaged_are_named(tmp_path: Path) -> None:
    write_safetensors(translating(), tokenizers(), {"name": "x"}, Rank(12.5), tmp_path)
    facts = json.loads((tmp_path / CONFIG).read_text(encoding="utf-8"))
    for changed, weights, message in (
        ({"architecture": "Perceptron"}, None, f"{CONFIG} does not describe .*Perceptron is not one of"),
        ({"n_heads": 3}, None, f"{CONFIG} does not describe .*d_model=16 does not split"),
        ({"tgt_vocab": 40}, None, f"{WEIGHTS} does not fit {CONFIG}: .*tgt_embedding"),
        ({}, b"", f"{WEIGHTS} cannot be read"),
    ):
        (tmp_path / CONFIG).write_text(json.dumps(facts | changed), encoding="utf-8")
        if weights is not None:
            (tmp_path / WEIGHTS).write_bytes(weights)
        with pytest.raises(ValueError, match=message) as caught:
            load_safetensors(tmp_path)
        assert "\n" not in str(caught.value)


# ---- BERT from Hugging Face


VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "old", "capital", "cap", "##ital"]
VOCABULARY += ["京", "都", "Old", "é", "e"]
VOCABULARY += [*(f"##{letter}" for letter in "abcdefgh"), "\u2028"]


def write(folder: Path, model: transformers.PreTrainedModel, pieces: list[str] = VOCABULARY) -> Path:
    """In single precision, as models are published."""
    model.type(torch.float32).save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return folder


def change(path: Path, changes: Any) -> None:
    """Change what a file has: settings, or tensors, of which None removes one; None for all removes the file."""
    if changes is None:
        path.unlink()
    elif isinstance(changes, bytes):
        path.write_bytes(changes)
    elif path.suffix == ".json":
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps(found | changes), encoding="utf-8")
    else:
        tensors = load_file(path) | changes
        save_file({name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}, path)


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return write(tmp_path / "bert", hugging_face.lively(transformers.BertForPreTraining, hugging_face.config()))


@torch.no_grad()
@pytest.mark.parametrize(
    ("architecture", "missing"),
    [
        (transformers.BertForPreTraining, ()),
        (transformers.BertForMaskedLM, ("pooler", "next_sentence")),
        (transformers.BertModel, ("head", "next_sentence")),
    ],
)
def test_a_bert_reads_what_it_read_before(architecture: Any, missing: tuple[str, ...], tmp_path: Path) -> None:
    """The words of its folder, and its body; the heads have oracles of their own."""
    folder = write(tmp_path, hugging_face.lively(architecture, hugging_face.config()))
    model, t, lacking = load_hugging_face_bert(folder)
    assert lacking == missing
    theirs = transformers.BertTokenizer.from_pretrained(folder)
    read = theirs(["old capital 京都", "old"], ["caphital é", "e"], return_tensors="pt", padding=True)
    ids, segments = read["input_ids"], read["token_type_ids"]
    first, second = t.encode(["old capital 京都", "caphital é"])
    assert ids[0].tolist() == [t.cls_id, *first, t.sep_id, *second, t.sep_id]
    expected = transformers.BertModel.from_pretrained(folder)(**read).last_hidden_state
    torch.testing.assert_close(model.bert(ids, segments)[ids != 0], expected[ids != 0], atol=1e-5, rtol=1e-5)
    assert model.head.output.weight is model.bert.embedding.weight
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_names_of_old_and_doubled_tensors_are_known(bert: Path) -> None:
    expected = load_hugging_face_bert(bert).model.state_dict()
    tensors = load_file(bert / WEIGHTS)
    changes: dict[str, Tensor | None] = {
        "bert.embeddings.position_ids": torch.arange(12)[None],
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
    }
    for name, tensor in tensors.items():
        if "LayerNorm" in name:
            changes[name] = None
            changes[name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")] = tensor
    change(bert / WEIGHTS, changes)
    loaded = load_hugging_face_bert(bert)
    assert loaded.missing == ()
    assert all(loaded.model.state_dict()[name].equal(expected[name]) for name in expected)
    body = {name: tensor for name, tensor in tensors.items() if name.startswith("bert.")}
    assert load_theirs(BertClassifier(ClassifierConfig(**asdict(loaded.model.config)), VOCAB, 3), body) == (
        "classifier",
    )


def test_settings_words_and_precision_are_those_of_its_files(tmp_path: Path) -> None:
    pieces = [*VOCABULARY[1:5], VOCABULARY[0], *VOCABULARY[5:]]
    theirs = hugging_face.config(hidden_act="silu", layer_norm_eps=1e-5, hidden_dropout_prob=0, pad_token_id=4)
    folder = write(tmp_path, hugging_face.lively(transformers.BertModel, theirs), pieces)
    halves = {name: tensor.half() for name, tensor in load_file(folder / WEIGHTS).items()}
    change(folder / WEIGHTS, halves)
    loaded = load_hugging_face_bert(folder)
    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_ff": 24, "n_layers": 2, "max_length": 12}
    assert loaded.model.config == BertConfig(**sizes, activation="swish", norm_eps=1e-5, dropout=0.0)
    assert loaded.model.bert.embedding.weight.equal(halves["embeddings.word_embeddings.weight"].float())
    assert loaded.tokenizer.pad_id == loaded.model.bert.pad_id == 4
    cased = {"do_lower_case": False}
    for settings, text in (({}, "old e"), (cased, "Old é"), ({"do_lower_case": True, "strip_accents": False}, "old é")):
        change(folder / "tokenizer_config.json", settings)
        tokenizer = load_hugging_face_bert(folder).tokenizer
        assert tokenizer.decode(tokenizer.encode(["Old é"])) == [text]


QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        (CONFIG, {"model_type": "roberta"}, "model_type=roberta: only bert"),
        (CONFIG, {"num_hidden_layers": 1}, r"encoder.layer.1.attention.* is not a weight of this model \(16"),
        (CONFIG, None, f"has no {CONFIG}: a BERT is read from"),
        (CONFIG, {"hidden_size": "wide"}, "says d_model=wide: it must be a number"),
        (CONFIG, b"[]", "holds no settings: a JSON object is expected"),
        (WEIGHTS, {QUERY: torch.ones(2, 2)}, r"self.query.weight has shape \(2, 2\), but \(16, 16\) is expected"),
        ("tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"}, "class=BertJapaneseTokenizer"),
        ("vocab.txt", b"\xff\n", "is not UTF-8"),
        ("vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n", r"\[MASK\] is not among the 4 pieces"),
        (WEIGHTS, b"half", "cannot be read"),
        (WEIGHTS, {QUERY: None}, "encoder.layer.1.attention.self.query.weight is missing"),
        (WEIGHTS, {"cls.predictions.decoder.weight": torch.ones(VOCAB, 16)}, "is not the word embedding"),
    ],
)
def test_another_model_and_damaged_files_are_refused(bert: Path, file: str, changes: Any, message: str) -> None:
    change(bert / file, changes)
    with pytest.raises(ValueError, match=message) as refused:
        load_hugging_face_bert(bert)
    assert "\n" not in str(refused.value)


# not in the usual order, and with pieces that begin like each other
WORD_PIECES = (
    "the [MASK] un ##aff ##able ##affable [PAD] una a ##a ab ##ab ##abc c [UNK] [SEP] [CLS] 京 都 と ##う é ##e"
)
PIECE_LIST = [*WORD_PIECES.split(), *".,!$", "\u2028", "\x85", "a b", "", "##", "ab"]


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces_are_those_of_hugging_face_but_for_special_tokens(lowercase: bool) -> None:
    theirs = transformers.BertTokenizer({p: i for i, p in enumerate(PIECE_LIST)}, do_lower_case=lowercase)
    t = WordPieceTokenizer(PIECE_LIST, lowercase)
    texts = ["", "unaffable UNAFFABLE unable. a$a", "École é É", "京都と京都とうと", "a\u200ba\u3000a", "a" * 101, "☃"]
    assert t.encode(texts) == [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    unknown = PIECE_LIST.index("[UNK]")
    assert set(t.encode(["[CLS] [MASK][SEP][PAD]"])[0]) == {unknown}
    assert t.decode([[16, 0, 2, 5, 1, unknown, 15, 6], []]) == ["the unaffable [MASK] [UNK]", ""]


# ---- export.py, and translate.py with what it wrote


Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs export.py or translate.py."""
    mains = {"export.py": export.main, "translate.py": translate.main}
    return lambda program, *words, stdin="": outcome(program, mains[program], capsys, *words, stdin=stdin.encode())


def test_an_exported_run_translates_as_the_run_does(command: Command, tmp_path: Path) -> None:
    folder, made = learned_run(tmp_path / "pickles"), tmp_path / "made" / "here"
    WordPair(*(Words(language, {}, True, False, False) for language in ("ja", "en"))).save(folder)
    said = command("export.py", folder, "--to", "ctranslate2", "--output", made).out
    assert all(f"{file.stat().st_size / 1e6:.1f} MB" in said for file in (made / "model.bin", folder / WEIGHTS))
    assert [file.name for file in made.parent.iterdir()] == ["here"]
    assert not [file for file in made.iterdir() if str(tmp_path).encode() in file.read_bytes()]
    lines = "".join(f"{line}\n" for line in ["寺", "", "  ", *TEXT.src])
    expected = command("translate.py", "--beam", "1", "--run", folder, stdin=lines)
    folder.rename(tmp_path / "elsewhere")  # the export needs neither the run nor its place
    moved = made.rename(tmp_path / "moved")
    found = command("translate.py", "--run", moved, "--engine", "ctranslate2", "--beam", "1", stdin=lines)
    assert (found.status, found.out) == (0, expected.out)
    assert len(set(found.out.splitlines())) > 20
    assert found.out != command("translate.py", "--run", moved, "--beam", "1", "--pre-tokenized", stdin=lines).out
    refused = command("translate.py", "--run", moved, "--engine", "miyako", "a")
    assert (refused.status, "--engine miyako: it depends on --run" in refused.err) == (2, True)


def words() -> TokenizerPair:
    both = WordTokenizer.train(TEXT.tgt, 1, lowercase=True)
    return TokenizerPair(both, both)


@cache
def tagged() -> TokenizerPair:
    return train_tokenizers(TokenizerConfig(vocab_size=90, tag=True), TEXT.src, TEXT.tgt, ("ja", "en"))


def law() -> TokenizerPair:
    config = TokenizerConfig(vocab_size=60, joint=False)
    return train_tokenizers(config, TEXT.src, TEXT.tgt, text_tags=["bt", "law"]).with_tag("law")


@pytest.mark.parametrize(
    ("make_pair", "text", "expected"),
    [
        (tokenizers, TEXT.src[7], '{"beam_size": 2, "length_penalty": 0.6}'),
        (words, TEXT.tgt[5], ".lower()"),
        (tagged, TEXT.src[5], '["<2en>"] + '),
        (law, TEXT.src[5], '["<law>"] + '),
    ],
)
def test_the_folder_says_how_it_is_used_elsewhere(
    make_pair: Callable[[], TokenizerPair],
    text: str,
    expected: str,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pair, output = make_pair(), tmp_path / "exported"
    monkeypatch.setattr("tests.tiny.tokenizers", lambda: pair)
    folder = run(tmp_path) if pair is not tokenizers() else learned_run(tmp_path)
    command("export.py", folder, "--to", "ctranslate2", "--output", output, "--quantization", "int8")
    card, snippet = (output / "README.md").read_text(encoding="utf-8"), snippet_of(output)
    assert expected in snippet
    assert "weights: int8." in card
    assert ("Tags of its vocabulary: bt, law" in card) == (make_pair is law)
    assert (output / "model.bin").stat().st_size < 0.5 * (folder / WEIGHTS).stat().st_size
    of_text, n = re.subn(r'"a sentence.*?"', repr(text), snippet)
    assert n == 1
    with contextlib.chdir(output):
        exec(of_text, {})
    alone = capsys.readouterr().out
    assert alone.strip()
    like_theirs = ("--normalization", "length", "--max-ratio", "99")  # its own penalty, and no limit
    monkeypatch.setattr("utils.search.translator.has_words", bool)  # what has learned nothing may say dots, and no word
    assert command("translate.py", text, "--run", output, *like_theirs).out == alone


def test_a_package_translates_in_argos_translate_as_the_run_does(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.tiny.tokenizers", tagged)
    monkeypatch.setattr("tests.tiny.translating", lambda _: learned(tagged))
    folder, package, installed = run(tmp_path, UNTIED), tmp_path / "ja_en.argosmodel", tmp_path / "installed"
    assert command("export.py", folder, "--to", "argos", "--output", package).status == 0
    with ZipFile(package) as packed:
        packed.extractall(installed)
    files = {path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()}
    model = {f"model/{name}" for name in ("config.json", "model.bin", "shared_vocabulary.json")}
    assert files == {f"{folder.name}/{name}" for name in model | {"metadata.json", "sentencepiece.model", "README.md"}}
    languages = {"from_code": "ja", "from_name": "Japanese", "to_code": "en", "to_name": "English"}
    versions = {"package_version": "0.1.0", "argos_version": "1.5"}
    assert read_json(installed / folder.name / "metadata.json") == versions | languages
    pieces = SentencePieceProcessor(model_file=str(installed / folder.name / "sentencepiece.model"))
    theirs = ctranslate2.Translator(str(installed / folder.name / "model"), device="cpu")

    def translated(texts: Sequence[str]) -> list[str]:  # as `apply_packaged_translation` there does, but greedily
        found = theirs.translate_batch([pieces.encode(text, out_type=str) for text in texts], beam_size=1)
        return [pieces.decode(result.hypotheses[0]) for result in found]

    texts, unlimited = TEXT.src[:20], SearchConfig(beam_size=1, max_ratio=99)
    expected = [found.text for found in load_run(folder, CPU).translator(unlimited).translate(texts)]
    assert translated(texts) == expected
    assert len({*expected}) > 10
    assert translated(["京都に古い寺" * 1000])  # no sentence is too long for it


def test_a_network_of_any_task_becomes_safetensors(
    command: Command, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    runs = {
        "Transformer": folders[0],
        "BertForPreTraining": tiny.bert_run(tmp_path),
        "BertClassifier": tiny.classifier_run(tmp_path),
        "TransformerXL": tiny.language_run(tmp_path),
    }
    facts = {}
    for name, own in runs.items():
        output, expected = tmp_path / name, export.load_any(own)[0]
        assert command("export.py", own, "--to", "safetensors", "--output", output).status == 0
        net, _, facts[name] = load_safetensors(output)
        assert type(net).__name__ == facts[name]["architecture"] == name
        assert net.config == expected.config
        assert all(net.state_dict()[key].equal(tensor) for key, tensor in expected.state_dict().items())
        assert facts[name]["name"] == own.name
        assert own.name in (output / "README.md").read_text(encoding="utf-8")
        assert not [path for path in output.rglob("*") if str(tmp_path) in path.read_bytes().decode("latin-1")]
    assert facts["BertClassifier"]["labels"] == ["bridge", "garden", "river"]
    assert (facts["Transformer"]["src_lang"], facts["Transformer"]["tgt_lang"]) == ("ja", "en")


def test_a_run_to_be_given_away_is_a_quarter_of_the_size_and_describes_itself(command: Command, tmp_path: Path) -> None:
    own, output = learned_run(tmp_path), tmp_path / "pickles" / "given"
    assert "has no test.json yet" in command("export.py", own, "--to", "run", "--output", output).complaint
    assert not output.exists()
    samples = [
        {"source": src, "reference": tgt, "translation": "?"} for src, tgt in zip(TEXT.src, TEXT.tgt, strict=True)
    ]
    scores = {"bleu": 12.5, "chrf": 34.5, "bleu_signature": "one|two", "chrf_signature": "three", "perplexity": 6.7}
    facts = {"parameters": 1_240_000, "steps": 4321, "target_tokens": 5_600_000, "minutes": 7.8, "machine": "a GPU"}
    write_json(own / "test.json", {**facts, **scores, "samples": samples})
    config = TranslationConfig.load(own / "config.yaml")
    replace(config, data=replace(config.data, archive=tmp_path / "archive")).save(own / "config.yaml")
    assert command("export.py", own, "--to", "run", "--output", output).status == 0
    assert (output / WEIGHTS).stat().st_size < 0.5 * (own / WEIGHTS).stat().st_size  # its matrices are small
    again = read_json(output / "test.json")["samples"]
    found = load_run(output, CPU).translator().translate(TEXT.src)
    assert [sample["translation"] for sample in again] == [one.text for one in found]
    assert len({sample["translation"] for sample in again}) > 3
    card = (output / "README.md").read_text(encoding="utf-8")
    for said in ("Japanese into English", "4,321 updates", "BLEU 12.50 (`one|two`)", "a GPU", again[0]["translation"]):
        assert said in card
    assert str(tmp_path) not in (output / "config.yaml").read_text(encoding="utf-8")
    assert command("translate.py", TEXT.src[0], "--run", output, "--precision", "fp32").out == f"{found[0].text}\n"
    bert = tiny.bert_run(tmp_path)
    refused = command("export.py", bert, "--to", "run", "--output", tmp_path / "x").complaint
    assert "but only Transformers that translate" in refused


def test_what_cannot_be_exported_says_why_and_leaves_nothing(
    command: Command, folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    language, mish = tiny.language_run(tmp_path), run(tmp_path, replace(MODEL, activation="mish"))
    to, output = ("--to", "ctranslate2", "--output", tmp_path / "x"), ("--output", tmp_path / "x")

    def complaint(*words: str | Path) -> str:
        return command("export.py", *words).complaint

    for changed in ({"scale_attention": False}, {"scale_embedding": False}, {"positions": "none"}):
        folder = run(tmp_path / "unscaled", replace(MODEL, **changed))
        assert "always scales attention and embeddings and has sinusoidal, learned, rotary positions: " in complaint(
            folder, *to
        )
    assert "is of task language, but only Transformers that translate can be exported" in complaint(language, *to)
    assert "no activation mish" in complaint(mish, *to)
    assert "quantization=int4" in complaint(folders[0], *to, "--quantization", "int4")
    of_weights = complaint("--to", "safetensors", *output, "--quantization", "int8")
    assert "--quantization int8 is for --to ctranslate2, " in of_weights
    assert f"give {tmp_path / 'x'}.argosmodel" in complaint(folders[0], "--to", "argos", *output)
    argos = ("--to", "argos", "--output", tmp_path / "x.argosmodel")
    assert "one vocabulary of pieces for both languages: train with --tokenizer.joint" in complaint(folders[0], *argos)
    monkeypatch.setattr("tests.tiny.tokenizers", tagged)
    tokenized, learning = run(tmp_path / "unscaled"), run(tmp_path / "unscaled", replace(MODEL, positions="learned"))
    config = TranslationConfig.load(tokenized / "config.yaml")
    replace(config, data=replace(config.data, pre_tokenized=True)).save(tokenized / "config.yaml")
    (learning / "tokenizer_tag.txt").write_text("<2en> <2ja>")
    assert "one token at most, not <2en> <2ja>: give --to ctranslate2" in complaint(learning, *argos)
    (learning / "tokenizer_tag.txt").write_text("<2en>")
    assert "this run learned from words set apart by spaces: train with plain" in complaint(tokenized, *argos)
    assert f"max_length={MODEL.max_length}: train with sinusoidal or rotary" in complaint(learning, *argos)
    with pytest.raises(ValueError, match="BERT as encoder: export to safetensors"):
        to_ctranslate2(translating(READER), tokenizers(), tmp_path / "x")
    monkeypatch.setattr("ctranslate2.get_cuda_device_count", lambda: 0)
    for words, message in (
        (("--run", folders[1], "--precision", "fp16"), "precision=fp16: "),
        (("--run", folders[1], "--device", "cuda"), "CUDA is not available here: use device=cpu"),
        (("--run", folders[1], "--glossary", "x.tsv"), "--glossary x.tsv and --run "),
        (("--run", folders[1], "--sample"), "(for CTranslate2) and --sample at once: it needs the run itself"),
        (("--run", folders[0], "--run", folders[1]), "(for CTranslate2) and 2 runs at once: an ensemble is of runs"),
    ):
        with pytest.raises(ValueError, match="was exported for CTranslate2: only"):
            load_run(folders[1], CPU)  # as serve.py does
        assert message in command("translate.py", "寺", *words).complaint
    assert "was exported for CTranslate2: only translate.py" in complaint(folders[1], "--to", "run", *output)
    other = tmp_path / "unscaled" / "safetensors"
    assert command("export.py", folders[0], "--to", "safetensors", "--output", other).status == 0
    for refused in complaint(other, *to), command("translate.py", "寺", "--run", other).complaint:
        assert "has a model for other programs, such as export.py writes: give the run itself" in refused
    for target in ("ctranslate2", "safetensors"):
        assert f"--output {tmp_path} already exists" in complaint("--to", target, "--output", tmp_path)
        with monkeypatch.context() as full:
            full.setattr(TokenizerPair, "save", lambda *_: cast(Any, Path()).joinpath("\0").touch())
            assert complaint(folders[0], "--to", target, *output)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # its import fails
    for module in ("ctranslate2", "engine"):
        monkeypatch.delitem(sys.modules, f"utils.export.{module}")
        monkeypatch.delattr(f"utils.export.{module}")
    for found in (complaint(folders[0], *to), command("translate.py", "寺", "--run", folders[1]).complaint):
        assert re.search(r": ctranslate2 cannot be loaded \(.+\): `poetry install --with export`$", found)
    assert set(tmp_path.iterdir()) == {language, mish, tmp_path / "unscaled"}
