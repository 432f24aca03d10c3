"""How weights begin, and which are one."""

import math

import pytest
import torch
from torch import nn

from layers.multi_head_attention import MultiHeadAttention
from layers.positional_encoding import LearnedPositionalEncoding
from layers.token_embedding import TokenEmbedding
from models.weight import initialise, initialise_truncated, tie

D = 16


def parts(pad_id: int = 0) -> nn.ModuleDict:
    """One of each kind, all of it garbage: NaN, as uninitialised memory may be."""
    torch.manual_seed(0)
    network = nn.ModuleDict(
        {
            "token": TokenEmbedding(2000, D, padding_idx=pad_id),
            "position": LearnedPositionalEncoding(D, 500),
            "attention": MultiHeadAttention(D, 2),
            "linear": nn.Linear(D, 1000),
            "bare": nn.Linear(D, 3, bias=False),
            "norm": nn.LayerNorm(D),
        }
    )
    for parameter in network.parameters():
        nn.init.constant_(parameter, math.nan)
    return network


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    network = parts()
    initialise(network, pad_id=0)
    return {name: parameter.detach() for name, parameter in network.named_parameters()}


def test_nothing_is_left_as_it_lay_in_memory(weights: dict[str, torch.Tensor]) -> None:
    for name, weight in weights.items():
        assert weight.isfinite().all(), name
        assert weight.abs().max() <= 2, name


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("linear.weight", math.sqrt(6 / (D + 1000))),
        ("bare.weight", math.sqrt(6 / (D + 3))),
        ("attention.query.weight", math.sqrt(6 / (D + 3 * D))),
        ("attention.key_value.weight", math.sqrt(6 / (D + 3 * D))),
        ("attention.output.weight", math.sqrt(6 / (D + D))),
    ],
)
def test_matrices_are_uniform_up_to_glorots_bound(weights: dict[str, torch.Tensor], name: str, bound: float) -> None:
    weight = weights[name]
    assert 0.85 * bound < weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("token.weight", math.sqrt(6 / (D + 2000))),
        ("position.table.weight", math.sqrt(6 / (D + 500))),
        ("linear.weight", math.sqrt(6 / (D + 1000))),
        ("attention.query.weight", math.sqrt(6 / (D + D))),
        ("attention.key_value.weight", math.sqrt(6 / (D + D))),
    ],
)
def test_xavier_gives_every_matrix_the_bound_of_its_own_shape(name: str, bound: float) -> None:
    network = parts()
    initialise(network, pad_id=0, initialisation="xavier_uniform")
    weight = network.get_parameter(name).detach()
    assert 0.85 * bound < weight.abs().max() <= bound
    assert not name.startswith("token") or (weight[0] == 0).all()


@pytest.mark.parametrize("name", ["token.weight", "position.table.weight"])
def test_embeddings_leave_the_scaling_with_unit_variance(weights: dict[str, torch.Tensor], name: str) -> None:
    assert (weights[name][1:] * math.sqrt(D)).std().item() == pytest.approx(1, rel=0.03)
    assert weights[name].mean().abs() < 0.01


def test_biases_are_zero_and_norms_are_the_identity(weights: dict[str, torch.Tensor]) -> None:
    for name, weight in weights.items():
        if name.endswith("bias"):
            assert weight.count_nonzero() == 0, name
    assert weights["norm.weight"].equal(torch.ones(D))


@pytest.mark.parametrize("pad_id", [0, 3])
@pytest.mark.parametrize("truncated", [False, True])
def test_padding_begins_at_zero_and_is_the_only_row_that_does(pad_id: int, truncated: bool) -> None:
    network = parts(pad_id)
    if truncated:
        initialise_truncated(network, 0.02, pad_id)
    else:
        initialise(network, pad_id)
    for name, zero_rows in ("token.weight", [pad_id]), ("position.table.weight", []):
        rows = network.get_parameter(name).abs().sum(1)
        assert (rows == 0).nonzero().flatten().tolist() == zero_rows, name


def test_without_a_pad_id_no_row_is_zero() -> None:
    network = parts()
    initialise(network)
    assert network.get_parameter("token.weight").abs().sum(1).min() > 0


def test_berts_matrices_and_embeddings_are_normal_up_to_two_deviations() -> None:
    network = parts()
    initialise_truncated(network, std=0.5)
    beyond = math.exp(-2) * math.sqrt(2 / math.pi) * 2 / math.erf(math.sqrt(2))  # variance that the cut takes away
    for name, parameter in network.named_parameters():
        weight = parameter.detach()
        if name.endswith("bias") or name == "norm.weight":
            assert weight.equal(torch.full_like(weight, float(name == "norm.weight"))), name
        else:
            assert weight.abs().max() <= 1, name
            assert weight.std().item() == pytest.approx(
                0.5 * math.sqrt(1 - beyond), rel=0.02 + 1 / weight.numel() ** 0.5
            )
            assert weight.mean().abs() < 2 / weight.numel() ** 0.5, name


def test_tied_weights_are_one_and_learn_as_one() -> None:
    torch.manual_seed(0)
    owner, embedding, output = TokenEmbedding(5, 4), TokenEmbedding(5, 4), nn.Linear(4, 5, bias=False)
    before = owner.weight.detach().clone()
    tie(owner, embedding, output)
    assert owner.weight is embedding.weight
    assert owner.weight is output.weight
    assert owner.weight.equal(before)
    output(torch.ones(1, 4)).sum().backward()
    torch.optim.SGD(output.parameters(), lr=1.0).step()
    torch.testing.assert_close(embedding.weight.detach(), before - 1)


def test_weights_of_other_shapes_are_refused_with_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"\(5, 4\) and \(6, 4\).*joint vocabulary"):
        tie(TokenEmbedding(5, 4), nn.Linear(4, 5, bias=False), TokenEmbedding(6, 4))
