import pytest
import torch
from torch import nn

from const.token import BOS_ID, EOS_ID, PAD_ID
from utils.dataset.batch import Batch, padded
from utils.training import report as module
from utils.training.optimizer import GuardedOptimizer
from utils.training.plan import OptimizerConfig, Progress
from utils.training.report import Meter


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def count(meter: Meter, batches: list[Batch], nats: float, norm: float) -> None:
    n = sum(int((batch.tgt[:, 1:] != PAD_ID).sum()) for batch in batches)
    meter.count(n, batches, torch.tensor(nats), torch.tensor(float(n)), torch.tensor(norm))


def optimizer(lr: float) -> GuardedOptimizer:
    net = nn.Linear(1, 1)
    made = GuardedOptimizer(net, OptimizerConfig(peak_lr=lr), 1)
    made.skipped += 3
    return made


# 4 + 2 real source tokens of 8 positions, 3 + 1 target tokens of 6
UNEVEN = Batch(padded([[4, 5, 6], [4]]), padded([[7, 8], []], bos=True))
# 2 of 2 and 1 of 1
SMALL = Batch(torch.tensor([[4, EOS_ID]]), torch.tensor([[BOS_ID, EOS_ID]]))


def test_a_report_is_of_all_updates_since_the_last_one(clock: Clock) -> None:
    progress = Progress()
    meter = Meter(progress)
    for nats, norm in ((8.0, 3.0), (12.0, 5.0)):
        clock.now += 2
        count(meter, [UNEVEN], nats, norm)
    report = meter.report(optimizer(0.25))
    assert report.loss == pytest.approx(20 / 8)
    assert (report.gradient_norm, report.learning_rate) == (5, 0.25)
    assert report.tokens_per_second == pytest.approx(8 / 4)
    assert report.padding == pytest.approx(1 - 10 / 14)
    assert report.target_tokens == 8
    assert report.skipped == 3

    clock.now += 4
    count(meter, [SMALL, SMALL], 1.0, 2.0)
    report = meter.report(optimizer(0.5))
    assert report.loss == pytest.approx(1 / 2)
    assert report.tokens_per_second == pytest.approx(2 / 4)
    assert report.padding == 0
    assert report.target_tokens == 10


def test_an_update_moves_progress_on_however_many_batches_it_had(clock: Clock) -> None:
    progress = Progress(step=7, position=2, target_tokens=50, seconds=9)
    meter = Meter(progress)
    clock.now += 1.5
    count(meter, [UNEVEN, SMALL], 1.0, 1.0)
    assert progress == Progress(step=8, position=3, target_tokens=55, seconds=10.5)


def test_time_that_went_elsewhere_is_not_counted(clock: Clock) -> None:
    progress = Progress()
    meter = Meter(progress)
    clock.now += 1
    count(meter, [SMALL], 1.0, 1.0)
    clock.now += 1000
    meter.restart_clock()
    clock.now += 1
    count(meter, [SMALL], 1.0, 1.0)
    assert progress.seconds == 2
    assert meter.report(optimizer(0.1)).tokens_per_second == pytest.approx(2 / 2)


def test_an_update_that_was_not_made_is_not_in_the_loss(clock: Clock) -> None:
    meter = Meter(Progress())
    clock.now += 2
    count(meter, [UNEVEN], 8.0, 3.0)
    count(meter, [UNEVEN], float("nan"), float("inf"))
    report = meter.report(optimizer(0.1))
    assert report.loss == pytest.approx(8 / 4)
    assert report.tokens_per_second == pytest.approx(8 / 2)
    assert report.gradient_norm == float("inf")


def test_what_was_counted_goes_on_in_another_meter(clock: Clock) -> None:
    progress = Progress()
    first, second = Meter(progress), Meter(progress)
    clock.now += 2
    count(first, [UNEVEN], 8.0, 3.0)
    second.load_state_dict(first.state_dict())
    second.restart_clock()
    clock.now += 2
    count(second, [SMALL], 1.0, 2.0)
    report = second.report(optimizer(0.1))
    assert report.loss == pytest.approx(9 / 5)
    assert report.tokens_per_second == pytest.approx(5 / 4)
    assert report.padding == pytest.approx(1 - 13 / 17)
