"""Where the norm and the dropout go, by the two formulas."""

import pytest
import torch
from torch import Tensor

from layers.dropout import Dropout
from layers.residual import Residual


def norm(x: Tensor, eps: float = 1e-5) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + eps).sqrt()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dropout", [0.0, 0.5], ids=["none dropped", "all dropped"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_it_is_its_formula_with_and_without_what_is_dropped(
    x: Tensor, norm_first: bool, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dropout, "forward", lambda self, x: x * (self.p == 0))
    kept = 0 if dropout else 1
    expected = x + kept * norm(x).cos() if norm_first else norm(x + kept * x.cos())
    torch.testing.assert_close(Residual(8, dropout, norm_first).double()(x, torch.cos), expected)


def test_nothing_is_dropped_after_training(x: Tensor) -> None:
    torch.testing.assert_close(Residual(8, 0.5).double().eval()(x, torch.cos), x + norm(x).cos())


@pytest.mark.parametrize("norm_first", [True, False])
def test_what_is_added_to_the_variance_can_be_chosen(x: Tensor, norm_first: bool) -> None:
    expected = x + norm(x, 0.5).cos() if norm_first else norm(x + x.cos(), 0.5)
    torch.testing.assert_close(Residual(8, 0.0, norm_first, norm_eps=0.5).double()(x, torch.cos), expected)
