"""Folders written by Hugging Face's own `save_pretrained` are read, and invalid folders refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertForMaskedLM, BertForPreTraining, BertModel, BertTokenizer, PreTrainedModel

from models.bert import BertClassifier, BertConfig
from tests.hugging_face import VOCAB, config, lively
from utils.export.hugging_face import HuggingFaceBert, load_hugging_face_bert, load_weights

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "old", "capital", "cap", "##ital", "京", "都", "Old", "é", "e"]
PIECES += [f"##{letter}" for letter in "abcdefghi"]
TEXT = ["old capital 京都", "caphital é"]


def write(folder: Path, model: PreTrainedModel, pieces: list[str] | None = None) -> Path:
    """In single precision, as models are published."""
    model.type(torch.float32).save_pretrained(folder)
    vocabulary = "".join(f"{piece}\n" for piece in (PIECES if pieces is None else pieces))
    (folder / "vocab.txt").write_text(vocabulary, encoding="utf-8")
    return folder


def rewrite(folder: Path, changes: dict[str, Tensor | None]) -> Path:
    """Replace these tensors of a folder; None removes one."""
    tensors = load_file(folder / "model.safetensors") | changes
    kept = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def reconfigure(folder: Path, file: str = "config.json", **changes: Any) -> Path:
    path = folder / file
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(found | changes), encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "bert", lively(BertForPreTraining, config()))


def batch(loaded: HuggingFaceBert) -> tuple[Tensor, Tensor]:
    """Both texts as one pair, and the first alone with padding."""
    t = loaded.tokenizer
    first, second = t.encode(TEXT)
    pair = [t.cls_id, *first, t.sep_id, *second, t.sep_id]
    alone = [t.cls_id, *first, t.sep_id]
    ids = torch.tensor([pair, alone + [t.pad_id] * (len(pair) - len(alone))])
    segments = torch.zeros_like(ids)
    segments[0, len(alone) :] = 1
    return ids, segments


@torch.no_grad()
def test_a_checkpoint_of_pre_training_is_read_whole(folder: Path) -> None:
    loaded = load_hugging_face_bert(folder)
    oracle = BertForPreTraining.from_pretrained(folder)
    assert loaded.missing == ()
    assert not loaded.model.training
    ids, segments = batch(loaded)
    theirs = BertTokenizer.from_pretrained(folder)(TEXT[:1], TEXT[1:], return_tensors="pt")
    assert ids[:1].equal(theirs["input_ids"])
    assert segments[:1].equal(theirs["token_type_ids"])
    expected = oracle(input_ids=ids, token_type_ids=segments, attention_mask=(ids != 0).long())
    tokens, follows = loaded.model(ids, segments)
    torch.testing.assert_close(tokens[ids != 0], expected.prediction_logits[ids != 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(follows.flip(-1), expected.seq_relationship_logits, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_checkpoint_without_a_pooler_says_so(tmp_path: Path) -> None:
    folder = write(tmp_path, lively(BertForMaskedLM, config()))
    loaded = load_hugging_face_bert(folder)
    assert loaded.missing == ("pooler", "next_sentence")
    ids, segments = batch(loaded)
    oracle = BertForMaskedLM.from_pretrained(folder)
    expected = oracle(input_ids=ids, token_type_ids=segments, attention_mask=(ids != 0).long()).logits
    tokens = loaded.model(ids, segments).tokens
    torch.testing.assert_close(tokens[ids != 0], expected[ids != 0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_checkpoint_without_heads_and_prefix_says_so(tmp_path: Path) -> None:
    folder = write(tmp_path, lively(BertModel, config()))
    assert not any(name.startswith("bert.") for name in load_file(folder / "model.safetensors"))
    loaded = load_hugging_face_bert(folder)
    assert loaded.missing == ("head", "next_sentence")
    ids, segments = batch(loaded)
    oracle = BertModel.from_pretrained(folder)
    expected = oracle(input_ids=ids, token_type_ids=segments, attention_mask=(ids != 0).long())
    x = loaded.model.bert(ids, segments)
    torch.testing.assert_close(x[ids != 0], expected.last_hidden_state[ids != 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loaded.model.pooler(x), expected.pooler_output, atol=1e-5, rtol=1e-5)
    assert loaded.model.head.output.weight is loaded.model.bert.embedding.weight
    assert all(parameter.isfinite().all() for parameter in loaded.model.parameters())


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"hidden_act": "relu", "layer_norm_eps": 1e-5}, {"activation": "relu", "norm_eps": 1e-5}),
        ({"hidden_act": "silu", "type_vocab_size": 3}, {"activation": "swish", "n_segments": 3}),
        ({"num_attention_heads": 4, "num_hidden_layers": 3}, {"n_heads": 4, "n_layers": 3}),
        ({"hidden_size": 8, "intermediate_size": 12}, {"d_model": 8, "d_ff": 12}),
        (
            {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0.3, "max_position_embeddings": 20},
            {"dropout": 0.0, "attention_dropout": 0.3, "max_length": 20},
        ),
    ],
)
def test_the_settings_are_those_of_its_config(tmp_path: Path, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    loaded = load_hugging_face_bert(write(tmp_path, lively(BertModel, config(**theirs))))
    expected = {"d_model": 16, "n_heads": 2, "d_ff": 24, "n_layers": 2, "max_length": 12} | ours
    assert loaded.model.config == BertConfig(**expected)


def test_names_of_old_and_doubled_tensors_are_known(folder: Path) -> None:
    expected = load_hugging_face_bert(folder).model.state_dict()
    tensors = load_file(folder / "model.safetensors")
    changes: dict[str, Tensor | None] = {
        "bert.embeddings.position_ids": torch.arange(12)[None],
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
    }
    for name, tensor in tensors.items():
        if "LayerNorm" in name:
            changes[name] = None
            changes[name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")] = (
                tensor
            )
    loaded = load_hugging_face_bert(rewrite(folder, changes))
    assert loaded.missing == ()
    found = loaded.model.state_dict()
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)


def test_half_precision_becomes_single(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    loaded = load_hugging_face_bert(rewrite(folder, {name: tensor.half() for name, tensor in tensors.items()}))
    word = loaded.model.bert.embedding.weight
    assert word.dtype == torch.float32
    assert word.equal(tensors["bert.embeddings.word_embeddings.weight"].half().float())


def test_padding_stands_where_the_vocabulary_has_it(tmp_path: Path) -> None:
    pieces = [*PIECES[1:5], PIECES[0], *PIECES[5:]]
    loaded = load_hugging_face_bert(write(tmp_path, lively(BertModel, config(pad_token_id=4)), pieces))
    assert loaded.tokenizer.pad_id == loaded.model.bert.pad_id == 4


def test_weights_are_given_to_a_classifier_whose_own_are_not_there(folder: Path) -> None:
    model = BertClassifier(load_hugging_face_bert(folder).model.config, VOCAB, 3)
    before = model.classifier.weight.detach().clone()
    theirs = load_file(folder / "model.safetensors")
    body = {name: tensor for name, tensor in theirs.items() if name.startswith("bert.")}
    assert load_weights(model, body) == ("classifier",)
    assert model.classifier.weight.equal(before)
    assert model.pooler.dense.weight.equal(theirs["bert.pooler.dense.weight"])


@pytest.mark.parametrize(
    ("settings", "lowercase", "expected"),
    [
        ({}, None, True),
        ({"do_lower_case": True}, None, True),
        ({"do_lower_case": False}, None, False),
        ({"do_lower_case": True}, False, False),
        ({"do_lower_case": False}, True, True),
        ({"do_lower_case": False, "strip_accents": None, "tokenizer_class": "BertTokenizerFast"}, None, False),
    ],
)
def test_case_is_what_the_tokenizers_settings_say(
    folder: Path, settings: dict[str, Any], lowercase: bool | None, expected: bool
) -> None:
    if settings:
        reconfigure(folder, "tokenizer_config.json", **settings)
    tokenizer = load_hugging_face_bert(folder, lowercase).tokenizer
    assert tokenizer.tokens(tokenizer.encode(["Old é"])[0]) == (["old", "e"] if expected else ["Old", "é"])


def test_settings_that_hugging_faces_tokenizer_saves_itself_are_read(folder: Path) -> None:
    theirs = BertTokenizer({piece: i for i, piece in enumerate(PIECES)}, do_lower_case=False)
    theirs.save_pretrained(folder)
    tokenizer = load_hugging_face_bert(folder).tokenizer
    assert tokenizer.encode(["Old é old"]) == [theirs("Old é old", add_special_tokens=False)["input_ids"]]


# refusals


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocab.txt"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=f"has no {name}: a BERT is read from"):
        load_hugging_face_bert(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "roberta"}, "model_type=roberta: only bert"),
        ({"hidden_act": "gelu_new"}, "hidden_act=gelu_new: our layers support gelu, relu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type=relative_key: only absolute"),
        ({"is_decoder": True}, "is_decoder=true: only encoders"),
        ({"hidden_size": "16"}, "hidden_size=16: it must be int"),
        ({"num_attention_heads": 0}, "num_attention_heads=0: it must be int and at least 1"),
        ({"num_hidden_layers": True}, "num_hidden_layers=True: it must be int"),
        ({"layer_norm_eps": -1.0}, "layer_norm_eps=-1.0: it must be float and at least 0"),
        ({"num_attention_heads": 3}, "d_model=16 does not split into n_heads=3"),
        (
            {"num_hidden_layers": 1},
            r"encoder.layer.1.attention.output.LayerNorm.bias is not a weight of this model \(16",
        ),
        ({"num_hidden_layers": 3}, "encoder.layer.2.attention.self.query.weight is missing"),
        (
            {"intermediate_size": 20},
            r"encoder.layer.0.intermediate.dense.weight has shape \(24, 16\), but \(20, 16\)",
        ),
        ({"max_position_embeddings": 14}, r"position_embeddings.weight has shape \(12, 16\), but \(14, 16\)"),
    ],
)
def test_settings_of_another_model_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        load_hugging_face_bert(reconfigure(folder, **changes))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class=BertJapaneseTokenizer"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars=False"),
        ({"strip_accents": False}, "strip_accents=False: our tokenizer supports only True"),
        ({"do_lower_case": False, "strip_accents": True}, "strip_accents=True: our tokenizer supports only False"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize=False"),
    ],
)
def test_another_tokenizer_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_hugging_face_bert(reconfigure(folder, "tokenizer_config.json", **changes))


_QUERY = "bert.encoder.layer.1.attention.self.query.weight"
_VALUE = "bert.encoder.layer.0.attention.self.value.weight"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"bert.a": torch.ones(1), "bert.b": torch.ones(1)},
            r"model.safetensors: a is not a weight of this model \(2 ",
        ),
        ({"classifier.weight": torch.ones(2, 16)}, "classifier.weight is not a weight"),
        ({_QUERY: None}, "encoder.layer.1.attention.self.query.weight is missing"),
        ({_VALUE: None}, "encoder.layer.0.attention.self.value.weight is missing"),
        ({"cls.predictions.bias": None}, "cls.predictions.decoder.bias is missing"),
        ({"bert.pooler.dense.bias": None}, "pooler.dense.bias is missing"),
        (
            {_VALUE: torch.ones(16, 8)},
            r"layer.0.attention.self.value.weight has shape \(16, 8\), but \(16, 16\) is",
        ),
        ({_VALUE: torch.ones(())}, r"layer.0.attention.self.value.weight has shape \(\), but \(16, 16\)"),
        ({"cls.predictions.decoder.weight": torch.ones(VOCAB, 16)}, "decoder.weight is not the word embedding"),
    ],
)
def test_weights_of_another_model_are_refused(folder: Path, changes: dict[str, Tensor | None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_hugging_face_bert(rewrite(folder, changes))


def test_damaged_files_are_refused_with_their_name(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read"):
        load_hugging_face_bert(folder)
    weights.write_bytes(whole)
    for name, content in ("vocab.txt", b"\xff\n"), ("config.json", b"{"), ("config.json", b"[]"):
        (folder / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            load_hugging_face_bert(folder)


@pytest.mark.parametrize("n", [VOCAB - 1, VOCAB + 1])
def test_a_vocabulary_of_another_length_is_refused_with_both_lengths(folder: Path, n: int) -> None:
    pieces = [*PIECES, "more"][:n]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    with pytest.raises(ValueError, match=f"has {n} pieces but the embedding 23 rows"):
        load_hugging_face_bert(folder)
