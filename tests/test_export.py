"""Exports and imports: CTranslate2 and Hugging Face as oracles, safetensors bit for bit, and export.py itself."""

import contextlib
import io
import json
import random
import re
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, cast

import ctranslate2
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

import export
import translate
from config.data import TokenizerConfig
from config.model import BertConfig, ClassifierConfig, TransformerConfig
from config.search import Bounds, SearchConfig
from const.token import BOS, EOS_ID, PAD, PAD_ID, SPECIAL_TOKENS, UNK, UNK_ID
from layers.decoder_block import DecoderBlock
from models.bert import BertClassifier, BertForPreTraining
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from tests import hugging_face, tiny
from tests.hugging_face import VOCAB
from tests.tiny import MODEL, TEXT, Outcome, lively, outcome, run, sources, tokenizers, translating
from utils.dataset.batch import padded
from utils.export import EXPORTED
from utils.export.ctranslate2 import (
    QUANTIZATIONS,
    CTranslate2Inspector,
    CTranslate2Model,
    CTranslate2Translator,
    TranslatorSettings,
    load_exported,
    to_ctranslate2,
)
from utils.export.hugging_face import WordPieceTokenizer, load_hugging_face_bert, load_weights
from utils.export.safetensors import CONFIG, WEIGHTS, Network, load_safetensors, write_safetensors
from utils.load import load_run
from utils.run import find_run
from utils.search.beam import beam_search
from utils.search.constraint import Hypothesis
from utils.search.inspection import Inspector, token_log_probs
from utils.search.sampling import greedy_search
from utils.text.tokenizer import Tokenizer, TokenizerPair, WordTokenizer, train_tokenizers
from utils.training.checkpoint import write_weights

CPU = torch.device("cpu")
GREEDY = SearchConfig(beam_size=1)
SOURCES = tokenizers().src.encode(TEXT.src[::2])
Penalty = tuple[float, Literal["gnmt", "length"]]


@cache
def learned(config: TransformerConfig = MODEL) -> Transformer:
    """Trained for a second on half of the sentences: what it says is varied, confident, and ends."""
    src = padded(tokenizers().src.encode(TEXT.src[::2]))
    tgt = padded(tokenizers().tgt.encode(TEXT.tgt[::2]), bos=True)
    torch.manual_seed(1)
    model = Transformer(config, len(tokenizers().src), len(tokenizers().tgt))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        logits = model(src, tgt[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD_ID)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def learned_run(root: Path) -> Path:
    folder = run(root)
    write_weights(learned().state_dict(), folder / WEIGHTS, 0.0)
    return folder


# ---- the network in CTranslate2


def attentive(config: TransformerConfig) -> Transformer:
    """What it says depends on the source more than on what it has said."""
    model = translating(config, seed=2)
    for block in cast(Sequence[DecoderBlock], model.decoder):
        for linear in (block.cross_attention.key_value, block.cross_attention.output):
            linear.weight.data *= 3
    return model


def converted(
    model: Transformer, folder: Path, pair: TokenizerPair | None = None, quantization: str | None = None
) -> ctranslate2.Translator:
    to_ctranslate2(model, pair or tokenizers(), folder, quantization)
    return ctranslate2.Translator(str(folder), device="cpu", intra_threads=1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_first": False},
        {"tie": "all"},
        {"norm_first": False, "positions": "learned", "tie": "none"},
        {"positions": "learned", "tie": "none", "activation": "gelu"},
        {"positions": "rotary", "n_encoder_layers": 2},
        {"activation": "swish", "n_encoder_layers": 2},
    ],
    ids=str,
)
def test_ctranslate2_says_the_same_and_finds_it_as_likely(changes: dict[str, Any], tmp_path: Path) -> None:
    config = replace(MODEL, **changes)
    one = tokenizers().src
    src, tgt = pair = TokenizerPair(one, one) if config.tie == "all" else tokenizers()
    model = lively(config, len(src), len(tgt)) if config.tie == "all" else attentive(config)
    theirs, draw = converted(model, tmp_path, pair), random.Random(1)
    ids = range(len(SPECIAL_TOKENS), len(src))
    # sentences, and any pieces in any order
    texts = SOURCES + [[draw.choice(ids) for _ in range(draw.randint(1, 30))] for _ in range(60)]
    bounds, once = [Bounds(0, 13)] * len(texts), SearchConfig(beam_size=1, no_repeat_ngram=1)
    ours = [tgt.tokens(found.ids) for found in greedy_search(model, padded(texts), bounds, once)]
    found = theirs.translate_batch(
        [src.tokens(ids) for ids in texts],
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=12,
        no_repeat_ngram_size=1,
        suppress_sequences=[[token] for token in (PAD, UNK, BOS)],
    )
    assert [translation.hypotheses[0] for translation in found] == ours
    assert len({tuple(tokens) for tokens in ours}) > 20

    targets = tgt.encode(TEXT.tgt[::4])
    given, texts = padded(targets, bos=True), texts[: len(targets)]
    log_probs = model(padded(texts), given[:, :-1]).log_softmax(-1).gather(-1, given[:, 1:, None])[..., 0].tolist()
    scored = theirs.score_batch([src.tokens(ids) for ids in texts], [tgt.tokens(ids) for ids in targets])
    for ids_, row, score in zip(targets, log_probs, scored, strict=True):
        assert score.log_probs == pytest.approx(row[: len(ids_) + 1], abs=1e-3)


def test_smaller_numbers_say_almost_the_same(tmp_path: Path) -> None:
    model = attentive(replace(MODEL, norm_first=False))  # whose numbers stay small
    targets = [tokenizers().tgt.tokens(ids) for ids in tokenizers().tgt.encode(TEXT.tgt[::20])]
    texts = [tokenizers().src.tokens(ids) for ids in SOURCES[::10]]
    whole = converted(model, tmp_path / "whole").score_batch(texts, targets)
    # AVX2 has no arithmetic for int16, which is computed as int8 there, and int8's sums saturate
    is_old = torch.backends.cpu.get_cpu_capability() == "AVX2"
    for quantization in QUANTIZATIONS:
        small = converted(model, tmp_path / quantization, quantization=quantization).score_batch(texts, targets)
        pairs = zip(small, whole, strict=True)
        far = [abs(a - b) for ours, theirs in pairs for a, b in zip(ours.log_probs, theirs.log_probs, strict=True)]
        tolerance = 0.1 if not quantization.startswith("int" if is_old else "int8") else 1.0 if is_old else 0.5
        assert sum(far) / len(far) < tolerance, quantization
        sizes = [(tmp_path / folder / "model.bin").stat().st_size for folder in (quantization, "whole")]
        assert (sizes[0] < 0.8 * sizes[1]) == (quantization != "float32")


def test_what_ctranslate2_cannot_hold_or_load_is_named(tmp_path: Path) -> None:
    bert = BertConfig(d_model=16, n_heads=2, d_ff=32, n_layers=1, max_length=48)
    for config, quantization, message in (
        (replace(MODEL, activation="mish"), None, "activation mish, only relu, gelu, swish: export to safetensors"),
        (replace(MODEL, bert=bert), None, "BERT as encoder: export to safetensors"),
        (MODEL, "int4", "quantization=int4: CTranslate2 supports int8, "),
    ):
        with pytest.raises(ValueError, match=message):
            to_ctranslate2(translating(config), tokenizers(), tmp_path / "model", quantization)
    assert not any(tmp_path.iterdir())
    to_ctranslate2(translating(), tokenizers(), tmp_path)
    with pytest.raises(ValueError, match="float16"):
        CTranslate2Model(tmp_path, tokenizers(), CPU, "fp16")
    (tmp_path / "model.bin").write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"CTranslate2 cannot load .* \(.*\): export the run again"):
        CTranslate2Model(tmp_path, tokenizers(), CPU)


# ---- its search, beside ours


DRAW = random.Random(2)
BOUNDS = [Bounds(least, least + DRAW.randint(1, 11)) for least in (DRAW.choice((0, 0, 3, 24)) for _ in SOURCES)]
PIECES = range(len(SPECIAL_TOKENS), len(tokenizers().tgt))
STARTS: list[list[int]] = [[], [], *([DRAW.choice(PIECES) for _ in range(n)] for n in (1, 2, 5))]


def tempted(bias: float) -> Transformer:
    """As much more as the bias says to say <pad>, <unk> and <s>; by much less than 0: sober, as the well-trained."""
    model = deepcopy(learned(replace(MODEL, tie="none")))
    with torch.no_grad():
        model.output.bias[:EOS_ID] = bias
    return model


def exported(model: Transformer, folder: Path) -> CTranslate2Model:
    to_ctranslate2(model, tokenizers(), folder)
    return CTranslate2Model(folder, tokenizers(), CPU)


def best(found: Sequence[Sequence[Hypothesis]]) -> list[list[int]]:
    return [hypotheses[0].ids for hypotheses in found]


@pytest.mark.parametrize("config", [MODEL, replace(MODEL, norm_first=False, positions="learned")], ids=["", "other"])
def test_greedy_translations_are_ours(config: TransformerConfig, tmp_path: Path) -> None:
    model = learned(config)
    theirs = exported(model, tmp_path)
    for search in (GREEDY, replace(GREEDY, no_repeat_ngram=2)):
        prefixes = [DRAW.choice(STARTS) for _ in SOURCES]
        ours = [found.ids for found in greedy_search(model, padded(SOURCES), BOUNDS, search, prefixes)]
        assert best(theirs.search(SOURCES, BOUNDS, search, prefixes)) == ours
    for ids, bound, prefix in zip(ours, BOUNDS, prefixes, strict=True):
        assert bound.least <= len(ids) < max(bound.most, len(prefix) + 1) or ids == prefix
        assert ids[: len(prefix)] == prefix
    assert len({len(ids) for ids in ours}) > 5


@pytest.mark.parametrize(("width", "penalty"), [(1, (0.6, "gnmt")), (2, (1.0, "length")), (5, (-1.0, "gnmt"))])
def test_scores_are_log_probabilities_over_our_penalty(width: int, penalty: Penalty, tmp_path: Path) -> None:
    model, search = tempted(-50.0), SearchConfig(width, *penalty)
    theirs = exported(model, tmp_path)
    texts, bounds = SOURCES[::2], [Bounds(0, bound.most - bound.least) for bound in BOUNDS[::2]]
    for prefixes in (None, [DRAW.choice(STARTS) for _ in texts]):
        found = theirs.search(texts, bounds, search, prefixes)
        for source, bound, hypotheses in zip(texts, bounds, found, strict=True):
            log_probs = token_log_probs(model, [source] * len(hypotheses), [one.ids for one in hypotheses])
            expected = [sum(each) / search.penalty(len(each)) for each in log_probs]
            scores = [one.score for one in hypotheses]
            assert scores == pytest.approx(expected, abs=1e-3)
            assert scores == sorted(scores, reverse=True)
            assert len({tuple(one.ids) for one in hypotheses}) == len(hypotheses) <= width
            assert prefixes or all(len(one.ids) < bound.most for one in hypotheses)
        assert sum(map(len, found)) > 0.4 * width * len(texts)


def test_a_beam_finds_what_ours_finds(tmp_path: Path) -> None:
    model, search = learned(), SearchConfig(4, 0.6)
    bounds = [Bounds(0, 40)] * len(SOURCES)
    ours = beam_search(model, padded(SOURCES), bounds, search, n_best=1)
    found = exported(model, tmp_path).search(SOURCES, bounds, search)
    assert sum(a == b for a, b in zip(best(ours), best(found), strict=True)) > 0.95 * len(SOURCES)
    lost = [a[0].score - b[0].score for a, b in zip(ours, found, strict=True)]
    assert sum(lost) / len(lost) < 0.05


def test_it_looks_on_when_enough_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, search, bounds = exported(learned(), tmp_path), SearchConfig(4, 2.0, "length"), [Bounds(0, 40)]
    far = [found[0].score for found in theirs.search(SOURCES, bounds * len(SOURCES), search)]
    monkeypatch.setattr("utils.export.ctranslate2._PATIENCE", 1)
    near = [found[0].score for found in theirs.search(SOURCES, bounds * len(SOURCES), search)]
    assert sum(far) > sum(near) + 0.01


def test_what_may_not_be_said_shares_out_its_probability(tmp_path: Path) -> None:
    model, bounds = tempted(10.0), [Bounds(0, 20)] * 40
    ours = greedy_search(model, padded(SOURCES[:40]), bounds, GREEDY)
    found = exported(model, tmp_path).search(SOURCES[:40], bounds, GREEDY)
    assert best(found) == [one.ids for one in ours]
    assert all(a.score < b.score for a, (b,) in zip(ours, found, strict=True) if len(b.ids) < 19)


def test_given_translations_are_as_likely_and_steps_are_refused(tmp_path: Path) -> None:
    model = translating()
    theirs, targets = exported(model, tmp_path), [[], *tokenizers().tgt.encode(TEXT.tgt[::2])[1:-1], [UNK_ID]]
    for ours, row in zip(token_log_probs(model, SOURCES, targets), theirs.log_probs(SOURCES, targets), strict=True):
        assert row == pytest.approx(ours, abs=1e-3)
    (found,) = theirs.search(SOURCES[:1], [Bounds(0, 1)], SearchConfig(2))
    assert [one.ids for one in found] == [[]]
    with pytest.raises(ValueError, match="no single steps"):
        theirs.step(None, None)


# ---- whole texts


TEXTS = ["", "".join(TEXT.src[:8]), "寺", "😀", "  ", "京都に古い寺" * 20, *TEXT.src[::3]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and its export."""
    root = tmp_path_factory.mktemp("pickles")
    folder = learned_run(root)
    export.export_ctranslate2(folder, root / "exported", None)
    return folder, root / "exported"


def test_texts_are_cut_prefixed_and_scored_as_ours(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    own = load_run(folders[0], CPU)
    ours, theirs = own.translator(GREEDY), load_exported(folders[1], CPU, GREEDY)
    expected, found = ours.translate(TEXTS), theirs.translate(TEXTS)
    for a, b in zip(expected, found, strict=True):
        tokens = [[candidate.tokens for candidate in one.candidates] for one in (a, b)]
        assert tokens[0] == tokens[1]
        assert (a.text, *a[1:]) == (b.text, *b[1:])
    assert {a.n_pieces for a in found} >= {0, 1}
    inspectors = Inspector(ours, [own.model]), CTranslate2Inspector(theirs)
    for row, other in zip(*(inspector.log_probs(TEXTS, expected) for inspector in inspectors), strict=True):
        assert other == (row and pytest.approx(row, abs=1e-3))
    wide = load_exported(folders[1], CPU)
    assert wide.search == own.config.search
    said = [one.text for one in wide.translate(TEXTS)]
    monkeypatch.setattr(CTranslate2Translator, "tokens_per_batch", 100)
    assert [one.text for one in wide.translate(TEXTS)] == said != [one.text for one in found]
    shortest = load_exported(folders[1], CPU, replace(GREEDY, max_length=3)).translate(TEXT.src[:9])
    assert max(len(one.candidates[0].tokens) for one in shortest) == 3
    search = SearchConfig(beam_size=6)
    by_score, by_risk = (load_exported(folders[1], CPU, search, None, risk) for risk in (False, True))
    assert [t.text for t in by_risk.translate(TEXTS)] != [t.text for t in by_score.translate(TEXTS)]


def test_settings_are_read_as_they_were_written(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not an exported translator: `python export\.py"):
        TranslatorSettings.load(tmp_path)
    found = json.loads((folders[1] / EXPORTED).read_text(encoding="utf-8"))
    search = {"beam_size": 3, "length_penalty": 1.5, "normalization": "length", "max_ratio": 1e-5}
    found["search"] = search | {"coverage_penalty": 0.2}  # which was removed since this was written
    (tmp_path / EXPORTED).write_text(json.dumps(found), encoding="utf-8")
    window = load_run(folders[0], CPU).window
    expected = TranslatorSettings(
        folders[0].name, "ja", "en", window, MODEL.max_length, SearchConfig(3, 1.5, "length", max_ratio=1e-5)
    )
    assert TranslatorSettings.load(tmp_path) == expected
    for change in ({"search": {"beam_size": 0}}, {"search": None}, {"more": 1}, {"window": ""}):
        (tmp_path / EXPORTED).write_text(json.dumps(found | change), encoding="utf-8")
        with pytest.raises(ValueError, match=f"{EXPORTED}, line .*{next(iter(change))}"):
            TranslatorSettings.load(tmp_path)


# ---- safetensors


BERT = BertConfig(d_model=16, n_heads=2, d_ff=24, n_layers=2, max_length=12, activation="mish", n_segments=3)
N_PIECES = len(tokenizers().tgt)
READER = TransformerConfig(
    d_model=16,
    n_heads=2,
    d_ff=16,
    n_encoder_layers=0,
    n_decoder_layers=1,
    tie="target",
    bert=BERT,
    init_encoder=Path("x"),
)


def written(net: Network, folder: Path) -> dict[str, Any]:
    both = TokenizerPair(tokenizers().tgt, tokenizers().tgt)
    write_safetensors(net.eval(), both, {"name": "京都"}, 12.5, folder)
    return cast(dict[str, Any], json.loads((folder / CONFIG).read_text(encoding="utf-8")))


def xl_logits(net: Network, ids: Tensor) -> Tensor:
    assert isinstance(net, TransformerXL)
    return net.project(net(ids, net.start(len(ids), ids.device))[0])


UNTIED = replace(MODEL, tie="none", positions="learned", norm_first=False)
NETWORKS: dict[str, tuple[Callable[[], Network], Callable[[Network, Tensor], Tensor]]] = {
    "tied": (lambda: lively(replace(MODEL, tie="all"), N_PIECES, N_PIECES), lambda net, ids: net(ids, ids)),
    "untied": (lambda: lively(UNTIED, N_PIECES, N_PIECES), lambda net, ids: net(ids, ids)),
    "behind a BERT": (lambda: lively(READER, N_PIECES, N_PIECES), lambda net, ids: net(ids, ids)),
    "BERT": (lambda: BertForPreTraining(BERT, N_PIECES), lambda net, ids: net(ids, ids % 3).tokens),
    "classifier": (
        lambda: BertClassifier(ClassifierConfig(16, 2, 24, 1, max_length=12), N_PIECES, 5),
        lambda net, ids: net(ids),
    ),
    "Transformer-XL": (lambda: TransformerXL(tiny.XL, N_PIECES), xl_logits),
}


@torch.no_grad()
@pytest.mark.parametrize(("make", "logits"), NETWORKS.values(), ids=NETWORKS)
def test_safetensors_say_the_same(
    make: Callable[[], Network], logits: Callable[[Network, Tensor], Tensor], tmp_path: Path
) -> None:
    net = make()
    tiny.enliven(net)
    facts = written(net, tmp_path)
    loaded = load_safetensors(tmp_path)
    assert type(loaded.net) is type(net)
    assert not loaded.net.training
    ids = sources(3, 7)
    assert logits(net, ids).std() > 0.01
    assert logits(loaded.net, ids).equal(logits(net, ids))
    assert loaded.net.state_dict().keys() == net.state_dict().keys()
    assert len({p.data_ptr() for p in loaded.net.parameters()}) == len({p.data_ptr() for p in net.parameters()})
    tokenizer = loaded.tokenizers.src
    assert tokenizer.tokens(range(len(tokenizer))) == tokenizers().tgt.tokens(range(N_PIECES))
    assert (facts["architecture"], facts["name"], facts["d_model"]) == (type(net).__name__, "京都", net.config.d_model)
    assert (facts["pad_id"], facts["unk_id"], facts["bos_id"], facts["eos_id"]) == (0, 1, 2, 3)
    assert "init_encoder" not in facts


def test_files_that_do_not_fit_or_are_damaged_are_named(tmp_path: Path) -> None:
    facts = written(translating(), tmp_path)
    for change, message in (
        ({"architecture": "Perceptron"}, f"{CONFIG} does not describe .*architecture=Perceptron is not one of"),
        ({"n_heads": 3}, f"{CONFIG} does not describe .*d_model=16 does not split"),
        ({"tgt_vocab": 40}, f"{WEIGHTS} does not fit {CONFIG}: .*tgt_embedding"),
    ):
        (tmp_path / CONFIG).write_text(json.dumps(facts | change), encoding="utf-8")
        with pytest.raises(ValueError, match=message) as caught:
            load_safetensors(tmp_path)
        assert "\n" not in str(caught.value)
    (tmp_path / CONFIG).write_text(json.dumps(facts), encoding="utf-8")
    (tmp_path / WEIGHTS).write_bytes(b"")
    with pytest.raises(ValueError, match=f"{WEIGHTS} cannot be read"):
        load_safetensors(tmp_path)
    (tmp_path / CONFIG).unlink()
    with pytest.raises(ValueError, match=f"{CONFIG} does not describe one of our networks"):
        load_safetensors(tmp_path)


# ---- BERT from Hugging Face


VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "old", "capital", "cap", "##ital", "京", "都"]
VOCABULARY += ["Old", "é", "e"]
VOCABULARY += [f"##{letter}" for letter in "abcdefghi"]


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
    ("kind", "missing"),
    [
        (transformers.BertForPreTraining, ()),
        (transformers.BertForMaskedLM, ("pooler", "next_sentence")),
        (transformers.BertModel, ("head", "next_sentence")),
    ],
)
def test_a_bert_reads_what_it_read_before(
    kind: type[transformers.PreTrainedModel], missing: tuple[str, ...], tmp_path: Path
) -> None:
    """The words of its folder, and its body; the heads have oracles of their own."""
    folder = write(tmp_path, hugging_face.lively(kind, hugging_face.config()))
    model, t, lacking = load_hugging_face_bert(folder)
    assert lacking == missing
    assert not model.training
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
    classifier = BertClassifier(loaded.model.config, VOCAB, 3)
    before = classifier.classifier.weight.detach().clone()
    body = {name: tensor for name, tensor in tensors.items() if name.startswith("bert.")}
    assert load_weights(classifier, body) == ("classifier",)
    assert classifier.classifier.weight.equal(before)


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
    for settings, lowercase, expected in (
        ({}, None, "old e"),
        ({"do_lower_case": False}, None, "Old é"),
        ({"do_lower_case": False}, True, "old e"),
        ({"do_lower_case": True, "strip_accents": False}, None, "old é"),
    ):
        change(folder / "tokenizer_config.json", settings)
        tokenizer = load_hugging_face_bert(folder, lowercase).tokenizer
        assert tokenizer.decode(tokenizer.encode(["Old é"])) == [expected]


QUERY = "bert.encoder.layer.1.attention.self.query.weight"


def test_another_model_and_damaged_files_are_refused(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {file.name: file.read_bytes() for file in bert.iterdir()}
    for file, changes, message in (
        (CONFIG, {"model_type": "roberta"}, "model_type=roberta: only bert"),
        (CONFIG, {"hidden_size": "16"}, "hidden_size=16: it must be a number"),
        (CONFIG, {"num_attention_heads": 3}, "d_model=16 does not split into n_heads=3"),
        (CONFIG, {"num_hidden_layers": 1}, r"encoder.layer.1.attention.* is not a weight of this model \(16"),
        (CONFIG, b"[]", CONFIG),
        (CONFIG, None, f"has no {CONFIG}: a BERT is read from"),
        ("tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"}, "class=BertJapaneseTokenizer"),
        ("vocab.txt", b"\xff\n", "is not UTF-8"),
        ("vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n", r"\[MASK\] is not among the 4 pieces"),
        ("vocab.txt", "\n".join(VOCABULARY[:-1]).encode(), r"shape \(23, 16\), but \(22, 16\)"),
        (WEIGHTS, whole[WEIGHTS][:-100], "cannot be read"),
        (WEIGHTS, {QUERY: None}, "encoder.layer.1.attention.self.query.weight is missing"),
        (WEIGHTS, {"cls.predictions.decoder.weight": torch.ones(VOCAB, 16)}, "is not the word embedding"),
    ):
        change(bert / file, changes)
        with pytest.raises(ValueError, match=message) as refused:
            load_hugging_face_bert(bert)
        assert "\n" not in str(refused.value)
        (bert / "tokenizer_config.json").unlink(missing_ok=True)
        for name, content in whole.items():
            (bert / name).write_bytes(content)
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # its import fails
    with pytest.raises(ValueError, match="`poetry install --with hugging_face`"):
        load_hugging_face_bert(bert)


# not in the usual order, and with pieces that begin like each other
WORD_PIECES = [
    "the",
    "[MASK]",
    "un",
    "##aff",
    "##able",
    "##affable",
    "[PAD]",
    "una",
    "a",
    "##a",
    "ab",
    "##ab",
    "##abc",
    "c",
    "[UNK]",
    "[SEP]",
    "[CLS]",
]
WORD_PIECES += ["京", "都", "と", "##う", "é", "##e"]
WORD_PIECES += [*".,!$", "\u2028", "\x85", "a b", "", "##", "ab"]


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces_are_those_of_hugging_face_but_for_special_tokens(lowercase: bool, tmp_path: Path) -> None:
    theirs = transformers.BertTokenizer({p: i for i, p in enumerate(WORD_PIECES)}, do_lower_case=lowercase)
    t: Tokenizer = WordPieceTokenizer(WORD_PIECES, lowercase)
    texts = ["", "unaffable UNAFFABLE unable. a$a", "École é É", "京都と京都とうと", "a\u200ba\u3000a", "a" * 101, "☃"]
    assert t.encode(texts) == [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    unknown = WORD_PIECES.index("[UNK]")
    assert set(t.encode(["[CLS] [MASK][SEP][PAD]"])[0]) == {unknown}
    assert t.decode([[16, 0, 2, 5, 1, unknown, 15, 6], []]) == ["the unaffable [MASK] [UNK]", ""]
    with pytest.raises(ValueError, match=r"tokenizer\.sampling=0\.1"):
        t.sample(["the"], 0.1, 1)
    t.save(tmp_path / "vocab")
    assert (tmp_path / "vocab.txt").read_bytes().decode() == "".join(f"{piece}\n" for piece in WORD_PIECES)


# ---- export.py, and translate.py with what it wrote


Command = Callable[..., Outcome]
ENGINE = ("--engine", "ctranslate2", "--run")
AS_CTRANSLATE2 = ("--normalization", "length", "--max_ratio", "99")  # its own penalty, and no limit


@pytest.fixture
def command(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs export.py or translate.py; the tiny run is the only one."""

    def run_it(program: str, *arguments: str | Path, stdin: str = "") -> Outcome:
        verb = {"export.py": export, "translate.py": translate}[program]
        for place in (export, sys.modules["utils.run"]):  # translate.py imports it only when it is needed
            monkeypatch.setattr(place, "find_run", partial(find_run, root=folders[0].parent))
        monkeypatch.setattr(sys, "argv", [program, *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        return outcome(program, verb.main, capsys)

    return run_it


def test_an_exported_run_translates_as_the_run_does(command: Command, tmp_path: Path) -> None:
    folder, made = learned_run(tmp_path / "pickles"), tmp_path / "made" / "here"
    assert command("export.py", folder, "--to", "ctranslate2", "--output", made).status == 0
    assert [file.name for file in made.parent.iterdir()] == ["here"]
    assert not [file for file in made.iterdir() if str(tmp_path).encode() in file.read_bytes()]
    lines = "".join(f"{line}\n" for line in ["寺", "", "  ", *TEXT.src])
    expected = command("translate.py", "--beam", "1", "--run", folder, stdin=lines)
    folder.rename(tmp_path / "elsewhere")  # the export needs neither the run nor its place
    moved = made.rename(tmp_path / "moved")
    found = command("translate.py", *ENGINE, moved, "--beam", "1", stdin=lines)
    assert (found.status, found.out) == (0, expected.out)
    assert len(set(found.out.splitlines())) > 20


def test_what_is_shown_of_a_translation_is_the_same(command: Command, folders: tuple[Path, Path]) -> None:
    def both(*options: str) -> list[str]:
        ways = (("--run", folders[0]), (*ENGINE, folders[1]))
        return [command("translate.py", TEXT.src[0], *options, *way).out for way in ways]

    plain = both("--beam", "1", "--prefix", "There", "--min_length", "20", "--no_repeat_ngram", "3")
    assert plain[0] == plain[1] != ""
    for options in (("--beam", "1", "--log_probs"), ("--score", TEXT.tgt[0])):
        ours, theirs = (json.loads(out) for out in both(*options, "--format", "jsonl"))
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            close = key in ("log_probs", "log_prob", "perplexity")
            assert key == "score" or theirs[key] == (pytest.approx(value, abs=2e-3, rel=1e-3) if close else value)


def words() -> TokenizerPair:
    both = WordTokenizer.train(TEXT.tgt, 1, lowercase=True)
    return TokenizerPair(both, both)


def tagged() -> TokenizerPair:
    return train_tokenizers(TokenizerConfig(vocab_size=90, tag=True), TEXT.src, TEXT.tgt, ("ja", "en"))


@pytest.mark.parametrize(
    ("pair", "text", "expected"),
    [
        (tokenizers, TEXT.src[7], '{"beam_size": 2, "length_penalty": 0.6}'),
        (words, TEXT.tgt[5], ".lower()"),
        (tagged, TEXT.src[5], '["<2en>"] + '),
    ],
)
def test_the_folder_says_how_it_is_used_elsewhere(
    pair: Callable[[], TokenizerPair],
    text: str,
    expected: str,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made, output = pair(), tmp_path / "exported"
    monkeypatch.setattr("tests.tiny.tokenizers", lambda: made)
    folder = run(tmp_path) if made is not tokenizers() else learned_run(tmp_path)
    assert command("export.py", folder, "--to", "ctranslate2", "--output", output).status == 0
    card = (output / "README.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", card, re.S | re.M)
    assert expected in snippet
    about_it, n = re.subn(r'"a sentence.*?"', repr(text), snippet)
    assert n == 1
    with contextlib.chdir(output):
        exec(about_it, {})
    alone = capsys.readouterr().out
    assert alone.strip()
    assert command("translate.py", text, *ENGINE, output, *AS_CTRANSLATE2).out == alone


def test_smaller_weights_translate_and_their_size_is_told(
    command: Command, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    output, folder = tmp_path / "x", folders[0]
    made = command("export.py", folder.name, "--to", "ctranslate2", "--output", output, "--quantization", "int8")
    assert all(f"{(at).stat().st_size / 1e6:.1f} MB" in made.out for at in (output / "model.bin", folder / WEIGHTS))
    assert "weights: int8." in (output / "README.md").read_text(encoding="utf-8")
    found = command("translate.py", *TEXT.src[:3], *ENGINE, output)
    assert (found.status, found.out.count("\n")) == (0, 3)
    for options, message in (
        (f"--run {output} --precision fp16", "precision=fp16: "),
        (f"--run {output} --engine miyako", "was exported for CTranslate2: add --engine ctranslate2"),
        ("", "`python export.py "),
    ):
        words = ("translate.py", "寺", "--engine", "ctranslate2", *options.split())
        assert message in command(*words).complaint


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
        output = tmp_path / name
        assert command("export.py", own, "--to", "safetensors", "--output", output).status == 0
        net, _, facts[name] = load_safetensors(output)
        assert type(net).__name__ == name
        assert all(net.state_dict()[key].equal(tensor) for key, tensor in load_file(own / WEIGHTS).items())
        assert facts[name]["name"] == own.name
        assert own.name in (output / "README.md").read_text(encoding="utf-8")
        assert not [path for path in output.rglob("*") if str(tmp_path) in path.read_bytes().decode("latin-1")]
    assert facts["BertClassifier"]["labels"] == ["bridge", "garden", "river"]
    assert (facts["Transformer"]["src_lang"], facts["Transformer"]["tgt_lang"]) == ("ja", "en")


def test_what_cannot_be_exported_says_why_and_leaves_nothing(
    command: Command, folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    language, mish = tiny.language_run(tmp_path), run(tmp_path, replace(MODEL, activation="mish"))
    to, output = ("--to", "ctranslate2", "--output", tmp_path / "x"), ("--output", tmp_path / "x")

    def complaint(*words: str | Path) -> str:
        return command("export.py", *words).complaint

    assert "is of task language, but only translators can be exported" in complaint(language, *to)
    assert "no activation mish" in complaint(mish, *to)
    assert "quantization=int4" in complaint(*to, "--quantization", "int4")
    assert "add --to ctranslate2" in complaint("--to", "safetensors", *output, "--quantization", "int8")
    for target in ("ctranslate2", "safetensors"):
        assert f"--output {tmp_path} already exists" in complaint("--to", target, "--output", tmp_path)
        with monkeypatch.context() as full:
            full.setattr(TokenizerPair, "save", lambda *_: cast(Any, Path()).joinpath("\0").touch())
            assert complaint(folders[0], "--to", target, *output)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # its import fails
    monkeypatch.delitem(sys.modules, "utils.export.ctranslate2")
    monkeypatch.delattr("utils.export.ctranslate2")
    assert "`poetry install --with export`" in complaint(*to)
    assert "ctranslate2 cannot be loaded (" in command("translate.py", "寺", "--engine", "ctranslate2").complaint
    assert set(tmp_path.iterdir()) == {language, mish}
