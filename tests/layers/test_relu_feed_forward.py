"""The fast feed-forward against the module's own three steps: numbers, gradients, and what is dropped."""

import pytest
import torch
from torch import Tensor

from layers.feed_forward import FeedForward
from layers.relu_feed_forward import relu_feed_forward

D, F = 8, 16


def weights(feed: FeedForward) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return feed.widen.weight, feed.widen.bias, feed.narrow.weight, feed.narrow.bias


def twins(dtype: torch.dtype, p: float = 0.25, autocast: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    """Output and all gradients of the fast twin and of the module's steps, dropping the same components."""
    torch.manual_seed(0)
    feed = FeedForward(D, F, dropout=p).to(dtype)
    x = torch.randn(3, 5, D, dtype=dtype, requires_grad=True)
    direction = torch.randn(3, 5, D, dtype=dtype)
    both = []
    for quick in (True, False):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if quick:
                out = relu_feed_forward(x, *weights(feed), p)
            else:
                out = feed.narrow(feed.dropout(feed.activation(feed.widen(x))))
        both.append([out.detach(), *torch.autograd.grad((out * direction).sum(), (x, *weights(feed)))])
    return both[0], both[1]


@pytest.mark.parametrize("p", [0.0, 0.25])
@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [(torch.float64, False), (torch.float32, False), (torch.float64, True)],  # double precision is never lowered
)
def test_it_is_the_module_step_by_step(dtype: torch.dtype, autocast: bool, p: float) -> None:
    for quick, steps in zip(*twins(dtype, p, autocast), strict=True):
        assert quick.dtype == steps.dtype == dtype
        torch.testing.assert_close(quick, steps)


def test_under_autocast_it_strays_no_further_than_the_steps_do() -> None:
    exact, _ = twins(torch.float32)
    quick, steps = twins(torch.float32, autocast=True)
    assert quick[0].dtype == torch.bfloat16
    for true, ours, theirs in zip(exact, quick, steps, strict=True):
        assert ours.dtype == theirs.dtype
        assert (ours - true).norm() < 1.5 * (theirs - true).norm() + 1e-2 * true.norm()


def test_the_gradient_by_hand_is_that_of_differences() -> None:
    torch.manual_seed(0)
    feed = FeedForward(3, 5).double()

    def forward(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        torch.manual_seed(0)
        return relu_feed_forward(x, w1, b1, w2, b2, 0.25)

    x = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(forward, (x, *weights(feed)))


@pytest.mark.parametrize("autocast", [False, True])
def test_the_share_p_is_dropped_and_the_rest_grows(autocast: bool) -> None:
    torch.manual_seed(0)
    x, eye, none = torch.ones(8, 16, 64), torch.eye(64), torch.zeros(64)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out, again = (relu_feed_forward(x, eye, none, eye, none, 0.25) for _ in range(2))
    assert set(out.unique().tolist()) == {0.0, torch.tensor(4 / 3, dtype=out.dtype).item()}
    assert (out == 0).double().mean().item() == pytest.approx(0.25, abs=0.02)
    assert not out.equal(again)


def test_a_module_that_learns_is_the_quick_one_and_drops_only_in_training() -> None:
    torch.manual_seed(0)
    feed, x = FeedForward(D, F, dropout=0.5), torch.randn(2, 4, D, requires_grad=True)
    out = feed(x)
    assert "ReluFeedForward" in out.grad_fn.next_functions[0][0].name()
    with torch.no_grad():
        exact = feed.eval()(x)
    torch.testing.assert_close(feed(x), exact)
    assert not out.isclose(exact).any()


def test_other_bends_take_the_steps() -> None:
    assert "ReluFeedForward" not in str(FeedForward(D, F, "gelu")(torch.ones(1, 1, D)).grad_fn.next_functions)


@pytest.mark.parametrize("spoiled", [float("nan"), float("inf")])
def test_what_is_not_finite_shows_in_the_gradient(spoiled: float) -> None:
    torch.manual_seed(0)
    for place in ("x", "w1"):
        feed, x = FeedForward(D, F, dropout=0.5), torch.randn(2, 4, D, requires_grad=True)
        with torch.no_grad():
            (x if place == "x" else feed.widen.weight).view(-1)[3] = spoiled
        feed(x).sum().backward()
        found = [x.grad, *(p.grad for p in feed.parameters())]
        assert not all(gradient.isfinite().all() for gradient in found if gradient is not None)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_no_number_stays_visible(sign: float, dtype: torch.dtype) -> None:
    """Training relies on it to skip the update."""
    damaged = torch.copysign(torch.tensor(float("nan")), torch.tensor(sign)).to(dtype)
    w1, b1 = torch.ones(4, 3, dtype=dtype), torch.zeros(4, dtype=dtype)
    w2, b2 = torch.ones(3, 4, dtype=dtype, requires_grad=True), torch.zeros(3, dtype=dtype)
    b1[2] = damaged
    out = relu_feed_forward(torch.ones(1, 2, 3, dtype=dtype), w1, b1, w2, b2, 0.0)
    assert out.isnan().any()
    out.sum().backward()
    assert w2.grad is not None
    assert w2.grad.isnan().any()


def test_nothing_is_no_obstacle() -> None:
    parameters = (torch.ones(4, 3), torch.ones(4), torch.ones(3, 4), torch.ones(3))
    assert relu_feed_forward(torch.ones(0, 5, 3), *parameters, 0.25).shape == (0, 5, 3)
