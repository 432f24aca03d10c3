"""Dropout by what Srivastava et al. require: how often, how much, and each component independent of the rest."""

import pytest
import torch

from layers.dropout import Dropout


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_p_of_the_components_are_dropped_and_the_others_grow(p: float, dtype: torch.dtype) -> None:
    dropout = Dropout(p)
    assert dropout.byte_p == pytest.approx(p, abs=1 / 512)
    p = dropout.byte_p
    out = dropout(torch.full((10_000, 16), 3.0, dtype=dtype))
    kept = out[out != 0]
    assert out.dtype == dtype
    torch.testing.assert_close(
        kept, torch.full_like(kept, 3 / (1 - p)), rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=0
    )
    assert 1 - kept.numel() / out.numel() == pytest.approx(p, abs=4 * (p * (1 - p) / out.numel()) ** 0.5)


@pytest.mark.parametrize("apart", [1, 2, 3, 4, 8])
def test_what_is_dropped_says_nothing_about_its_neighbours(apart: int) -> None:
    kept = Dropout(0.3)(torch.ones(10_000, 16)).flatten() != 0
    both = (kept[apart:] & kept[:-apart]).double().mean().item()
    assert both == pytest.approx(0.7**2, abs=0.005)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 0, 3), (5, 1, 7)])
def test_every_number_of_components_will_do(shape: tuple[int, ...]) -> None:
    out = Dropout(0.5)(torch.ones(shape))
    assert out.shape == shape
    assert ((out == 0) | (out == 2)).all()


def test_what_is_dropped_has_no_gradient() -> None:
    x = torch.randn(8, 16, requires_grad=True).T  # not contiguous
    out = Dropout(0.5)(x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert gradient.equal((out != 0) * 2.0)


def test_each_call_drops_anew_and_a_seed_brings_it_back() -> None:
    dropout, x = Dropout(0.5), torch.ones(8, 16)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(0)
    assert not first.equal(second)
    assert dropout(x).equal(first)


@pytest.mark.parametrize("p", [-0.1, 1e-3, 1 - 1e-3, 1.0, 1.5, float("nan")])
def test_what_eight_bits_cannot_say_or_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=f"dropout={p}: give 0, or a probability from 0.002 to 0.998"):
        Dropout(p)
    assert 0 < Dropout(0.002).byte_p < Dropout(0.998).byte_p < 1


def test_torchs_kernels_are_given_p_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda x, p: p * x)
    assert Dropout(0.1)(torch.ones((), dtype=torch.float64)) == 0.1


def test_nothing_happens_after_training_or_without_a_rate() -> None:
    x = torch.randn(8, 16)
    assert Dropout(0.5).eval()(x).equal(x)
    assert Dropout(0.0)(x).equal(x)
