import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from const.token import BOS, BOS_ID, EOS, EOS_ID
from layers.packed import packed
from models.bert import BertConfig
from models.transformer import Transformer
from tests.tiny import MODEL, lively, run, translating, written_out
from utils.run import load_run
from utils.search.inspection import (
    AttentionMap,
    attention_entropy,
    attention_weights,
    attentions,
    largest_entropy,
    row_entropy,
)

SRC, TGT = [5, 6, 7, 8, 9], [10, 11, 12]
CPU = torch.device("cpu")


def test_every_layer_and_head_of_the_three_kinds_is_there() -> None:
    found = attention_weights(translating(), SRC, TGT)
    assert list(found) == ["encoder", "decoder", "cross"]
    assert [tuple(weights.shape) for weights in found["encoder"]] == [(2, 6, 6)]
    assert [tuple(weights.shape) for weights in found["decoder"]] == [(2, 4, 4)] * 2
    assert [tuple(weights.shape) for weights in found["cross"]] == [(2, 4, 6)] * 2
    for layers in found.values():
        for weights in layers:
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
            assert weights.std() > 0.01
    assert all(weights.triu(1).count_nonzero() == 0 for weights in found["decoder"])


def test_they_are_those_of_a_model_that_writes_the_formula_out_and_of_a_packed_one(tmp_path: Path) -> None:
    folder = run(tmp_path)
    fused = load_run(folder, CPU).model
    assert fused.config.fused
    expected = attention_weights(written_out(fused), SRC, TGT)
    for model in (fused, packed(fused, torch.float32)):
        found = attention_weights(model, SRC, TGT)
        for kind, layers in expected.items():
            for ours, theirs in zip(found[kind], layers, strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    rounded = attention_weights(packed(fused, torch.bfloat16), SRC, TGT)
    assert all(weights.dtype == torch.float32 for layers in rounded.values() for weights in layers)


def by_hand(module: torch.nn.Module, queries: Tensor, memory: Tensor) -> Tensor:
    """Weights of a multi-head attention, unmasked, of one pair."""
    n = module.n_heads
    key, _ = module.key_value(memory).chunk(2, dim=-1)  # type: ignore[operator]
    q, k = (y.unflatten(-1, (n, -1)).transpose(1, 2) for y in (module.query(queries), key))  # type: ignore[operator]
    return (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1)[0]


@torch.no_grad()
def test_the_first_layer_looks_as_its_projections_say() -> None:
    model = translating()
    block = model.encoder[0]
    x = model.src_positions(model.src_embedding(torch.tensor([[*SRC, EOS_ID]])))
    x = block.around_self.norm(x)  # type: ignore[operator]
    torch.testing.assert_close(
        attention_weights(model, SRC, TGT)["encoder"][0],
        by_hand(block.self_attention, x, x),  # type: ignore[arg-type]
    )


def test_row_t_is_there_before_token_t_is_said() -> None:
    """Other tokens from t on change no row up to t."""
    model = translating()
    one, other = attention_weights(model, SRC, [10, 11, 12]), attention_weights(model, SRC, [10, 9, 5])
    for kind in ("decoder", "cross"):
        for ours, theirs in zip(one[kind], other[kind], strict=True):
            torch.testing.assert_close(ours[:, :2], theirs[:, :2])
            assert not torch.allclose(ours[:, 2], theirs[:, 2])


def test_a_bert_that_reads_the_source_is_the_beginning_of_the_encoder() -> None:
    bert = BertConfig(d_model=16, n_heads=4, d_ff=16, n_layers=3, max_length=20)
    model = lively(replace(MODEL, bert=bert), 20, 23)
    assert isinstance(model, Transformer)
    found = attention_weights(model, SRC, TGT)
    assert [len(weights) for weights in found["encoder"]] == [4, 4, 4, 2]
    assert attentions(model)["encoder"][-1] is model.encoder[0].self_attention
    torch.testing.assert_close(found["encoder"][0].sum(-1), torch.ones(4, 6))


def test_the_network_is_left_as_it_was_but_for_eval_mode() -> None:
    model = translating(replace(MODEL, dropout=0.5, attention_dropout=0.5)).train()
    modules = dict(model.named_modules())
    one, other = attention_weights(model, SRC, TGT), attention_weights(model.train(), SRC, TGT)
    assert one["cross"][1].equal(other["cross"][1])
    assert dict(model.named_modules()) == modules
    assert not any(module._forward_hooks for module in model.modules())


def test_rows_and_columns_stand_for_tokens() -> None:
    found = AttentionMap(["古い", "寺", EOS], ["old", "temple", EOS], {})
    assert (found.rows("encoder"), found.columns("encoder")) == (found.src_tokens, found.src_tokens)
    assert (found.rows("decoder"), found.columns("decoder")) == (found.tgt_tokens, [BOS, "old", "temple"])
    assert (found.rows("cross"), found.columns("cross")) == (found.tgt_tokens, found.src_tokens)
    assert BOS_ID == 2


# entropy


@pytest.mark.parametrize("n", [1, 2, 7])
def test_uniform_rows_have_the_largest_entropy_and_single_ones_none(n: int) -> None:
    assert row_entropy(torch.full((3, n), 1 / n)).tolist() == pytest.approx([math.log(n)] * 3)
    assert row_entropy(torch.eye(n)).tolist() == [0.0] * n
    drawn = torch.rand(50, n).softmax(-1)
    assert bool((row_entropy(drawn) <= math.log(n) + 1e-6).all())
    assert largest_entropy("encoder", 4, n) == pytest.approx(math.log(n))


def test_entropy_is_the_sum_of_its_formula() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.9, 0.1, 0.0, 0.0]])
    expected = [-sum(w * math.log(w) for w in row if w) for row in weights.tolist()]
    assert row_entropy(weights).tolist() == pytest.approx(expected)
    assert attention_entropy(weights).item() == pytest.approx(sum(expected) / 2)


def test_only_real_rows_count() -> None:
    weights = torch.rand(2, 3, 4, 5).softmax(-1)
    real = torch.tensor([True, False, True, False])
    found = attention_entropy(weights, real)
    assert found.shape == (2, 3)
    torch.testing.assert_close(found, attention_entropy(weights[:, :, [0, 2]]))
    assert not torch.allclose(found, attention_entropy(weights))


def test_what_sees_one_more_in_each_row_has_less_to_be_spread_over() -> None:
    uniform = torch.ones(5, 5).tril()
    uniform = uniform / uniform.sum(-1, keepdim=True)
    assert largest_entropy("decoder", 5, 5) == pytest.approx(attention_entropy(uniform).item())
