from tests.test_training import pairs
from utils.dataset.batch import BucketSampler, Epoch, Sampler


def test_the_last_epoch_is_remembered_and_no_other() -> None:
    made: list[int] = []

    def make(n: int) -> Epoch:
        made.append(n)
        return BucketSampler(pairs(3), 40).epoch(n)

    sampler: Sampler[Epoch] = Sampler(make)
    first = sampler.epoch(3)
    assert sampler.epoch(3) is first
    sampler.epoch(4)
    assert sampler.epoch(3) is not first
    assert made == [3, 4, 3]
