"""BERT against Hugging Face's, with the same weights; and what must and must not matter."""

from dataclasses import asdict, replace
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from config.model import BertConfig, ClassifierConfig
from const.token import PAD_ID
from layers.dropout import Dropout
from layers.probe import recorded_calls, recorded_weights
from models.bert import Bert, BertClassifier, BertForPreTraining
from tests.hugging_face import VOCAB, config, lively
from tests.tiny import assert_learned, drawn
from utils.export.hugging_face import load_theirs

TINY = BertConfig(d_model=16, n_heads=2, d_ff=24, n_layers=2, dropout=0.0, attention_dropout=0.0, max_length=12)
IDS = torch.tensor([[2, 5, 6, 3, 7, 8, 3], [2, 9, 3, 10, 3, 0, 0], [2, 3, 0, 0, 0, 0, 0]])
SEGMENTS = torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0]])
REAL = IDS != PAD_ID

# theirs and ours: each activation and both epsilons, and numbers that differ from each other
PAIRS: dict[str, tuple[transformers.BertConfig, BertConfig]] = {
    "gelu": (config(), TINY),
    "relu": (
        config(hidden_act="relu", layer_norm_eps=1e-5, num_attention_heads=4, num_hidden_layers=3),
        replace(TINY, activation="relu", norm_eps=1e-5, n_heads=4, n_layers=3),
    ),
    "silu": (
        config(hidden_act="silu", hidden_size=12, num_attention_heads=3, intermediate_size=8),
        replace(TINY, activation="swish", d_model=12, n_heads=3, d_ff=8),
    ),
    "mish": (
        config(hidden_act="mish", layer_norm_eps=1e-5, type_vocab_size=3, num_hidden_layers=1),
        replace(TINY, activation="mish", norm_eps=1e-5, n_segments=3, n_layers=1),
    ),
}
pairs = pytest.mark.parametrize(("theirs", "ours"), PAIRS.values(), ids=PAIRS.keys())
fused_or_not = pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])


def inputs() -> dict[str, Tensor]:
    return {"input_ids": IDS, "token_type_ids": SEGMENTS, "attention_mask": REAL.long()}


def pre_training(settings: BertConfig = TINY, seed: int = 0) -> BertForPreTraining:
    """In float64 and with every weight drawn."""
    torch.manual_seed(seed)
    return drawn(BertForPreTraining(settings, VOCAB).double().eval(), 0.4)


def classifier(settings: BertConfig, n_classes: int = 3, pooling: Literal["cls", "mean"] = "cls") -> BertClassifier:
    return BertClassifier(ClassifierConfig(**asdict(settings), pooling=pooling), VOCAB, n_classes)


def seen_layers(bert: Bert) -> tuple[Tensor, list[Tensor]]:
    """What a BERT gives, and before it what its blocks begin with and the output of each."""
    with recorded_calls(bert.encoder) as calls:
        return bert(IDS, SEGMENTS), [calls[0][0][0], *(output for _, output in calls)]


# oracle


@pairs
@fused_or_not
def test_every_layer_and_the_pooled_vector_are_those_of_hugging_face(
    theirs: transformers.BertConfig, ours: BertConfig, fused: bool
) -> None:
    oracle = lively(transformers.BertModel, theirs)
    model = BertForPreTraining(replace(ours, fused=fused), VOCAB).double().eval()
    load_theirs(model, oracle.state_dict())
    expected = oracle(**inputs(), output_hidden_states=True)
    for gradient in (True, False):  # another kernel, where fused
        with torch.set_grad_enabled(gradient):
            last, layers = seen_layers(model.bert)
        assert len(layers) == len(expected.hidden_states) == 1 + ours.n_layers
        for mine, other in zip(layers, expected.hidden_states, strict=True):
            torch.testing.assert_close(mine[REAL], other[REAL])
        torch.testing.assert_close(last[REAL], expected.last_hidden_state[REAL])
        torch.testing.assert_close(model.pooler(last), expected.pooler_output)


@pairs
def test_both_heads_of_pre_training_are_hugging_faces(theirs: transformers.BertConfig, ours: BertConfig) -> None:
    oracle = lively(transformers.BertForPreTraining, theirs)
    model = BertForPreTraining(ours, VOCAB).double().eval()
    load_theirs(model, oracle.state_dict())
    expected = oracle(**inputs())
    tokens, follows = model(IDS, SEGMENTS)
    torch.testing.assert_close(tokens[REAL], expected.prediction_logits[REAL])
    yes, no = expected.seq_relationship_logits.unbind(-1)
    torch.testing.assert_close(follows, torch.stack([no, yes], -1))


@pairs
@pytest.mark.parametrize("n_classes", [2, 5])
def test_the_classifier_is_hugging_faces(theirs: transformers.BertConfig, ours: BertConfig, n_classes: int) -> None:
    theirs.num_labels = n_classes
    oracle = lively(transformers.BertForSequenceClassification, theirs)
    model = classifier(ours, n_classes).double().eval()
    load_theirs(model, oracle.state_dict())
    torch.testing.assert_close(model(IDS, SEGMENTS), oracle(**inputs()).logits)


@pairs
@torch.no_grad()
def test_the_maps_are_hugging_faces(theirs: transformers.BertConfig, ours: BertConfig) -> None:
    oracle = lively(transformers.BertModel, theirs)
    model = BertForPreTraining(replace(ours, fused=False), VOCAB).double().eval()
    load_theirs(model, oracle.state_dict())
    with recorded_weights([block.get_submodule("self_attention.attention") for block in model.bert.encoder]) as maps:
        model.bert(IDS, SEGMENTS)
    expected = oracle(**inputs(), output_attentions=True).attentions
    assert len(maps) == len(expected) == ours.n_layers
    for mine, other in zip(maps, expected, strict=True):
        rows, queries = REAL.nonzero(as_tuple=True)
        torch.testing.assert_close(mine[rows, :, queries], other[rows, :, queries])
        assert mine[rows, :, queries].masked_select(~REAL[rows][:, None]).count_nonzero() == 0


def test_dropout_stands_where_hugging_faces_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def shrink(x: Tensor, p: float, training: bool = True) -> Tensor:
        return x * (1 - p) if training else x

    monkeypatch.setattr(F, "dropout", shrink)
    for layer in (nn.Dropout, Dropout):
        monkeypatch.setattr(layer, "forward", lambda self, x: shrink(x, self.p, self.training))
    dropped = {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.5, "num_labels": 3}
    oracle = lively(transformers.BertForSequenceClassification, config(**dropped)).train()
    model = classifier(replace(TINY, dropout=0.25, attention_dropout=0.5)).double()
    load_theirs(model, oracle.state_dict())
    torch.testing.assert_close(model(IDS, SEGMENTS), oracle(**inputs()).logits)


# golden


def test_the_defaults_are_the_published_bases_size() -> None:
    with torch.device("meta"):
        model = BertForPreTraining(BertConfig(), 30_522)
    assert sum(parameter.numel() for parameter in model.parameters()) == 110_106_428


# invariance


@fused_or_not
@torch.no_grad()
def test_padding_and_the_company_of_others_do_not_matter(fused: bool) -> None:
    model = pre_training(replace(TINY, fused=fused))
    tokens, follows = model(IDS, SEGMENTS)
    padded = model(F.pad(IDS, (0, 3)), F.pad(SEGMENTS, (0, 3), value=1))
    torch.testing.assert_close(padded.tokens[:, :7][REAL], tokens[REAL])
    torch.testing.assert_close(padded.follows, follows)
    order = [2, 0, 1]
    permuted = model(IDS[order], SEGMENTS[order])
    torch.testing.assert_close(permuted.tokens[REAL[order]], tokens[order][REAL[order]])
    alone = model(IDS[1:2, :5], SEGMENTS[1:2, :5])
    torch.testing.assert_close(alone.tokens[0], tokens[1, :5])


@torch.no_grad()
def test_a_mean_is_of_all_vectors_but_those_of_padding() -> None:
    model = drawn(classifier(TINY, pooling="mean").double().eval(), 0.4)
    all_logits, vectors = model(IDS, SEGMENTS), model.bert(IDS, SEGMENTS)
    w, b = model.pooler.dense.weight, model.pooler.dense.bias
    for logits, rows, length in zip(all_logits, vectors, (7, 5, 2), strict=True):
        mean = sum(rows[i] for i in range(length)) / length
        torch.testing.assert_close(logits, model.classifier(torch.tanh(w @ mean + b)))
    torch.testing.assert_close(model(F.pad(IDS, (0, 3)), F.pad(SEGMENTS, (0, 3), value=1)), all_logits)
    assert not torch.allclose(all_logits, model.classifier(model.pooler(vectors)))  # of the first position


@torch.no_grad()
def test_every_token_segment_and_position_matters_to_all() -> None:
    model = pre_training().bert
    ids, segments = IDS[:1], SEGMENTS[:1]
    before = model(ids, segments)
    for place in range(ids.size(1)):
        for changed in (
            model(ids.clone().index_fill_(1, torch.tensor([place]), 11), segments),
            model(ids, segments.clone().index_fill_(1, torch.tensor([place]), 1 - int(segments[0, place]))),
        ):
            assert ((changed - before).abs().amax(-1) > 1e-4).all(), place
    swapped = [0, 2, 1, 3, 4, 5, 6]  # the same tokens of the same segment, elsewhere
    assert ((model(ids[:, swapped], segments)[:, swapped] - before).abs().amax(-1) > 1e-4).all()
    assert model(ids).equal(model(ids, torch.zeros_like(ids)))  # without segments, all is the first


@torch.no_grad()
def test_another_token_may_stand_for_none() -> None:
    """Two rows of the vocabulary change places, and with them the one that is padding."""
    model, other = pre_training(), BertForPreTraining(TINY, VOCAB, pad_id=4).double().eval()
    other.load_state_dict(model.state_dict())
    other.bert.embedding.weight[[0, 4]] = model.bert.embedding.weight[[4, 0]]
    ids = IDS.where(REAL, 4)
    torch.testing.assert_close(other.bert(ids, SEGMENTS)[REAL], model.bert(IDS, SEGMENTS)[REAL])


@torch.no_grad()
def test_a_scaled_embedding_is_as_one_of_longer_vectors() -> None:
    model = pre_training().bert
    scaled = Bert(replace(TINY, scale_embedding=True), VOCAB).double().eval()
    scaled.load_state_dict(model.state_dict())
    model.embedding.weight *= 4
    torch.testing.assert_close(scaled(IDS, SEGMENTS)[REAL], model(IDS, SEGMENTS)[REAL])


# learning


@fused_or_not
def test_both_losses_together_reach_every_parameter(fused: bool) -> None:
    model = pre_training(replace(TINY, fused=fused, max_length=7)).train()
    tokens, follows = model(IDS, SEGMENTS)
    loss = F.cross_entropy(tokens[REAL], IDS[REAL].flip(0)) + F.cross_entropy(follows, torch.tensor([1, 0, 1]))
    loss.backward()
    assert_learned(model)
    tables = ("bert.positions.table.weight", "bert.segment_embedding.weight", "head.output.bias", "pooler.dense.weight")
    for name in tables:
        gradient = model.get_parameter(name).grad
        assert gradient is not None
        assert gradient.reshape(len(gradient), -1).abs().amax(1).gt(0).all(), name


@pytest.mark.parametrize("model", [BertForPreTraining(TINY, VOCAB), classifier(TINY)], ids=["pre", "cls"])
def test_all_weights_begin_small(model: nn.Module) -> None:
    assert model.get_parameter("bert.embedding.weight")[PAD_ID].count_nonzero() == 0
    if isinstance(model, BertForPreTraining):
        assert model.head.output.weight is model.bert.embedding.weight
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert parameter.eq(1 if name.endswith("weight") else 0).all(), name
        elif name.endswith("bias"):
            assert parameter.count_nonzero() == 0, name
        else:
            assert 0.02 < parameter.abs().max() <= 0.04, name
