"""Positions against the paper's formula one number at a time, and the same at every start."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from layers.positional_encoding import LearnedPositionalEncoding, SinusoidalPositionalEncoding, sinusoid

both = pytest.mark.parametrize("kind", [SinusoidalPositionalEncoding, LearnedPositionalEncoding])


def by_hand(position: int, component: int, d_model: int) -> float:
    angle = position / 10000 ** ((component - component % 2) / d_model)
    return math.cos(angle) if component % 2 else math.sin(angle)


@pytest.mark.parametrize("d_model", [1, 2, 5, 8, 15])
@pytest.mark.parametrize("position", [0, 1, 7, 4999])
def test_the_table_is_the_papers(d_model: int, position: int) -> None:
    row = sinusoid(position + 1, d_model)[position]
    expected = torch.tensor([by_hand(position, component, d_model) for component in range(d_model)])
    torch.testing.assert_close(row, expected, atol=1e-6, rtol=0)


@settings(max_examples=40)
@given(d_model=st.integers(1, 9), max_length=st.integers(1, 8), start=st.integers(0, 12), length=st.integers(1, 12))
def test_behind_the_end_of_the_table_the_same_table_goes_on(
    d_model: int, max_length: int, start: int, length: int
) -> None:
    nothing = torch.zeros(2, length, d_model)
    added = SinusoidalPositionalEncoding(d_model, max_length)(nothing, start)
    assert added.equal(sinusoid(start + length, d_model)[start:].expand(2, -1, -1))


@both
@pytest.mark.parametrize("start", [0, 1, 4, 6])
def test_a_later_start_is_a_slice_of_the_whole(kind: type[nn.Module], start: int) -> None:
    torch.manual_seed(0)
    encoding, x = kind(6, 7), torch.randn(2, 7, 6)
    whole = encoding(x)
    assert encoding(x[:, start:], start=start).equal(whole[:, start:])
    assert not whole[:, start:].equal(x[:, start:])


@pytest.mark.parametrize("length", [4, 5], ids=["within", "beyond"])
def test_a_half_precision_model_stays_in_half_precision(length: int) -> None:
    encoding = SinusoidalPositionalEncoding(6, 4).bfloat16()
    added = encoding(torch.zeros(1, length, 6, dtype=torch.bfloat16))
    assert added.dtype == torch.bfloat16
    torch.testing.assert_close(added[0].float(), sinusoid(length, 6), atol=4e-3, rtol=0)


@both
def test_dropout_takes_the_sum(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    encoding, x = kind(6, 7, dropout=0.5), torch.randn(2, 7, 6)
    dropped, kept = encoding(x), encoding.eval()(x)
    torch.testing.assert_close(dropped, torch.where(dropped == 0, 0, 2 * kept))
    assert 20 < dropped.count_nonzero() < 64


def test_the_sinusoid_is_not_part_of_a_checkpoint() -> None:
    short, long = SinusoidalPositionalEncoding(6, 3), SinusoidalPositionalEncoding(6, 9)
    assert not list(short.parameters())
    long.load_state_dict(short.state_dict())
    assert long.table.equal(sinusoid(9, 6))


def test_learned_rows_are_added_and_each_is_trained_the_first_too() -> None:
    torch.manual_seed(0)
    encoding, x = LearnedPositionalEncoding(6, 5), torch.randn(2, 4, 6)
    before = encoding.table.weight.detach().clone()
    assert encoding(x).equal(x + before[:4])
    encoding(x).sum().backward()
    torch.optim.SGD(encoding.parameters(), lr=0.5).step()
    moved = encoding.table.weight.detach() - before
    torch.testing.assert_close(moved[:4], torch.full((4, 6), -1.0))  # a gradient of 1 from each of two sentences
    assert moved[4].count_nonzero() == 0


@pytest.mark.parametrize(("start", "length"), [(0, 6), (5, 1), (3, 3)])
def test_a_learned_table_that_is_too_short_says_so(start: int, length: int) -> None:
    with pytest.raises(ValueError, match=r"6 positions .* table of 5"):
        LearnedPositionalEncoding(4, 5)(torch.zeros(1, length, 4), start=start)
