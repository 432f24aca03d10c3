"""A network that is written and read again is bit-identical."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from models.bert import BertClassifier, BertConfig, BertForPreTraining, ClassifierConfig
from models.transformer import TransformerConfig
from models.transformer_xl import TransformerXL
from tests.tiny import MODEL, lively, sources, tokenizers, translating
from tests.utils.task.tiny_run import XL
from tests.utils.task.tiny_run import lively as enliven
from utils.export.safetensors import CONFIG, WEIGHTS, Network, load_safetensors, write_safetensors
from utils.text.tokenizer import TokenizerPair

BERT = BertConfig(d_model=16, n_heads=2, d_ff=24, n_layers=2, max_length=12, activation="mish", n_segments=3)
VOCAB = len(tokenizers().tgt)
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


def written(net: Network, folder: Path) -> Path:
    both = TokenizerPair(tokenizers().tgt, tokenizers().tgt)
    write_safetensors(net.eval(), both, {"name": "京都"}, 12.5, folder)
    return folder


def made(net: Network) -> Network:
    enliven(net)
    return net


def xl_logits(net: Network, ids: Tensor) -> Tensor:
    assert isinstance(net, TransformerXL)
    return net.project(net(ids, net.start(len(ids), ids.device))[0])


NETWORKS: dict[str, tuple[Callable[[], Network], Callable[[Network, Tensor], Tensor]]] = {
    "tied": (lambda: lively(replace(MODEL, tie="all"), VOCAB, VOCAB), lambda net, ids: net(ids, ids)),
    "untied, learned positions, norm last": (
        lambda: lively(replace(MODEL, tie="none", positions="learned", norm_first=False), VOCAB, VOCAB),
        lambda net, ids: net(ids, ids),
    ),
    "behind a BERT": (lambda: lively(READER, VOCAB, VOCAB), lambda net, ids: net(ids, ids)),
    "BERT": (lambda: made(BertForPreTraining(BERT, VOCAB)), lambda net, ids: net(ids, ids % 3).tokens),
    "classifier": (
        lambda: made(BertClassifier(ClassifierConfig(16, 2, 24, 1, max_length=12), VOCAB, 5)),
        lambda net, ids: net(ids),
    ),
    "Transformer-XL": (lambda: made(TransformerXL(XL, VOCAB)), xl_logits),
}


@torch.no_grad()
@pytest.mark.parametrize(("make", "logits"), NETWORKS.values(), ids=NETWORKS)
def test_it_says_the_same(
    make: Callable[[], Network], logits: Callable[[Network, Tensor], Tensor], tmp_path: Path
) -> None:
    net = make()
    loaded = load_safetensors(written(net, tmp_path))
    assert type(loaded.net) is type(net)
    assert not loaded.net.training
    ids = sources(3, 7)
    expected = logits(net, ids)
    assert expected.std() > 0.01
    assert logits(loaded.net, ids).equal(expected)
    assert loaded.net.state_dict().keys() == net.state_dict().keys()
    assert len({p.data_ptr() for p in loaded.net.parameters()}) == len({p.data_ptr() for p in net.parameters()})
    tokenizer = loaded.tokenizers.src
    assert tokenizer.tokens(range(len(tokenizer))) == tokenizers().tgt.tokens(range(VOCAB))


def test_others_can_read_all_of_it(tmp_path: Path) -> None:
    net = translating(replace(MODEL, tie="none"))
    written(net, tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    assert tensors.keys() == net.state_dict().keys()
    assert all(tensor.equal(net.state_dict()[name]) for name, tensor in tensors.items())
    facts = json.loads((tmp_path / CONFIG).read_text(encoding="utf-8"))
    assert facts["architecture"] == "Transformer"
    assert facts["name"] == "京都"
    assert (facts["d_model"], facts["norm_first"], facts["tie"], facts["max_length"]) == (16, True, "none", 48)
    assert (facts["src_vocab"], facts["tgt_vocab"]) == (len(tokenizers().src), len(tokenizers().tgt))
    assert (facts["pad_id"], facts["unk_id"], facts["bos_id"], facts["eos_id"]) == (0, 1, 2, 3)
    assert "init_encoder" not in facts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "Perceptron"}, f"{CONFIG} does not describe .*architecture=Perceptron is not one of"),
        ({"n_heads": 3}, f"{CONFIG} does not describe .*d_model=16 does not split"),
        ({"tgt_vocab": 40}, f"{WEIGHTS} does not fit {CONFIG}: .*tgt_embedding"),
        ({"n_decoder_layers": 3}, f"{WEIGHTS} does not fit {CONFIG}: .*decoder.2"),
    ],
    ids=str,
)
def test_files_that_do_not_fit_are_named(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    written(translating(), tmp_path)
    facts = json.loads((tmp_path / CONFIG).read_text(encoding="utf-8"))
    (tmp_path / CONFIG).write_text(json.dumps(facts | changes), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        load_safetensors(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{CONFIG} does not describe one of our networks"):
        load_safetensors(tmp_path)
    written(translating(), tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"")
    with pytest.raises(ValueError, match=f"{WEIGHTS} cannot be read"):
        load_safetensors(tmp_path)
