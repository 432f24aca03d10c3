"""The average against its formula and torch's own; lent to the network; saved and loaded."""

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from utils.training.optimizer import MovingAverage
from utils.training.plan import OptimizerConfig, build_adam

MOVED = torch.tensor(True)


def tied() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5), nn.LayerNorm(5))
    net[1].weight = net[0].weight
    return net


def weights(net: nn.Module) -> list[Tensor]:
    return [weight.detach().clone() for weight in net.parameters()]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def move(net: nn.Module) -> None:
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(torch.randn_like(weight))


def averaged(net: nn.Module, average: MovingAverage) -> list[Tensor]:
    with average.swapped():
        return weights(net)


def test_the_first_updates_are_soon_forgotten_and_then_it_keeps_its_decay() -> None:
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 5.0)
    average, expected = MovingAverage(net, 0.4), 5.0
    for n, value in enumerate([1.0, -2.0, 3.0, 0.5, 7.0, 2.0, -1.0]):
        nn.init.constant_(net.weight, value)
        average.update(MOVED)
        decay = min(0.4, (1 + n) / (10 + n))  # 0.1, 0.18, ..., 0.36, and 0.4 from the sixth
        expected = decay * expected + (1 - decay) * value
        assert averaged(net, average)[0].item() == pytest.approx(expected, rel=1e-6)


def test_after_an_update_that_was_left_out_it_stays() -> None:
    net = tied()
    average = MovingAverage(net, 0.5)
    move(net)
    average.update(MOVED)
    before = averaged(net, average)
    move(net)
    average.update(~MOVED)
    assert equal(averaged(net, average), before)


def test_it_is_torchs_average_once_the_start_is_over() -> None:
    net = tied()
    average = MovingAverage(net, 0.5)
    for _ in range(8):  # from here (1 + n) / (10 + n) is above the decay
        average.update(MOVED)
    theirs = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    theirs.update_parameters(net)  # torch's first only copies
    for _ in range(10):
        move(net)
        average.update(MOVED)
        theirs.update_parameters(net)
    assert equal(averaged(net, average), weights(theirs.module))


def test_tied_weights_are_averaged_once_and_stay_tied() -> None:
    net = tied()
    average, start = MovingAverage(net, 0.9), weights(net)[0]
    assert len(average.state_dict()["average"]) == len(list(net.parameters())) == 4
    nn.init.zeros_(next(net.parameters()))
    average.update(MOVED)
    with average.swapped():
        assert net[0].weight is net[1].weight
        torch.testing.assert_close(weights(net)[0], 0.1 * start)


@pytest.mark.parametrize("fails", [False, True])
def test_the_networks_own_weights_come_back_bit_for_bit_where_they_were(fails: bool) -> None:
    net = tied()
    adam = build_adam(net.parameters(), OptimizerConfig())
    average = MovingAverage(net, 0.9)
    move(net)
    average.update(MOVED)
    mean = [value.clone() for value in average.state_dict()["average"].values()]
    before, identities = weights(net), [(id(weight), weight.data_ptr()) for weight in net.parameters()]
    end: AbstractContextManager[object] = pytest.raises(RuntimeError, match="inside") if fails else nullcontext()
    with end, average.swapped():
        assert equal(weights(net), mean)
        assert torch.equal(net.state_dict()["0.weight"], mean[0])  # what is saved inside
        assert not equal(weights(net), before)
        if fails:
            raise RuntimeError("inside")
    assert equal(weights(net), before)
    assert [(id(weight), weight.data_ptr()) for weight in net.parameters()] == identities
    assert equal(list(average.state_dict()["average"].values()), mean)
    held = [weight for group in adam.param_groups for weight in group["params"]]
    assert [id(weight) for weight in held] == [id(weight) for weight in net.parameters()]


def test_a_swap_within_a_swap_ends_with_the_networks_own() -> None:
    net = tied()
    average = MovingAverage(net, 0.9)
    move(net)
    before = weights(net)
    with average.swapped():
        with average.swapped():
            pass
        assert not equal(weights(net), before)
    assert equal(weights(net), before)


def test_what_is_loaded_is_a_copy() -> None:
    net = tied()
    saved, loaded = MovingAverage(net, 0.9), MovingAverage(net, 0.9)
    loaded.load_state_dict(saved.state_dict())
    before = averaged(net, saved)
    move(net)
    loaded.update(MOVED)
    assert equal(averaged(net, saved), before)


@pytest.mark.gpu
def test_the_device_is_not_waited_for() -> None:
    net = tied().cuda()
    average = MovingAverage(net, 0.9)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        average.update(MOVED)
        with average.swapped():
            pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
