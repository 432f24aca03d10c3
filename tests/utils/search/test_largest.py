"""The k largest numbers, by the short way and by torch's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from utils.search import beam as module
from utils.search.beam import largest

ways = pytest.mark.parametrize("few", [0, 2**17], ids=["short way", "topk"])


def check(values: Tensor, k: int) -> None:
    """The same values, largest first, and k different places that hold them."""
    best, places = largest(values, k)
    assert best.equal(values.topk(k).values)
    assert values.gather(1, places).equal(best)
    assert all(len(set(row)) == k for row in places.tolist())


@ways
@given(
    rows=st.integers(1, 4),
    width=st.integers(1, 700),
    k=st.integers(1, 9),
    levels=st.sampled_from([2, 5, 1000]),
    never=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    seed=st.integers(0, 999),
)
def test_it_is_topk_whatever_the_shape_and_however_many_are_equal(
    few: int, rows: int, width: int, k: int, levels: int, never: float, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    values = torch.randint(levels, (rows, width), generator=draw).float()
    values[torch.rand(rows, width, generator=draw) < never] = float("-inf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", few)
        check(values, min(k, width))


@ways
@pytest.mark.parametrize("width", [640, 641, 703])
@pytest.mark.parametrize("k", [1, 4])
def test_it_finds_them_at_both_ends_and_all_in_one_place(
    few: int, width: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FEW", few)
    for first in (0, 60, 64, 630, width - k):  # within a chunk, across two, in the last that is broken
        values = torch.zeros(2, width)
        values[:, first : first + k] = torch.arange(1.0, k + 1)
        assert largest(values, k)[1].tolist() == [list(range(first, first + k))[::-1]] * 2


def test_only_many_numbers_are_worth_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_through: list[int] = []
    topk = Tensor.topk

    def watched(values: Tensor, k: int) -> object:
        sorted_through.append(values.numel())
        return topk(values, k)

    monkeypatch.setattr(Tensor, "topk", watched)
    for rows in (4, 16):  # on both sides of the threshold
        sorted_through.clear()
        largest(torch.randn(rows, 16_000, generator=torch.Generator().manual_seed(0)), 4)
        assert (max(sorted_through) == rows * 16_000) == (rows == 4)
    monkeypatch.undo()
    for rows in (4, 16):
        check(torch.randn(rows, 16_000, generator=torch.Generator().manual_seed(0)), 4)


@pytest.mark.gpu
def test_on_cuda_it_is_topk_too() -> None:
    check(torch.randn(20, 16_000, device="cuda"), 4)
