"""What processes tell each other: who works first, who has which GPU, and that all stop where one of them does."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.test_train import Witness, interrupting, same
from tests.utils.task.test_training import classifier, fit_together, transformer_xl
from train import Trainer
from utils.training.distributed import Processes, joined_processes, own_device
from utils.training.plan import TrainingConfig


def test_all_processes_stop_where_one_is_asked_to_and_the_first_knows_what_all_remember(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(second: Trainer, witness: Witness) -> None:
        monkeypatch.setattr(second.optimizer, "step", interrupting(second.optimizer, witness.interrupt, 3))

    plan = TrainingConfig(max_steps=9, max_epochs=None, validate_every=1000)
    pair, told = fit_together(transformer_xl(0.0), plan, to_second=ask)
    assert [trainer.progress.step for trainer in pair] == [3, 3]
    assert all(witness.interrupt.asked for witness in told)
    assert pair[0].memories.keys() == {0, 1}
    assert same(tuple(pair[0].memories[1]), tuple(pair[1].memories[1]), set())


def test_all_processes_end_when_the_time_of_one_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def hurry(second: Trainer, _: Witness) -> None:
        step = second.optimizer.step

        def late(number: int, tokens: Tensor) -> Tensor:
            second.progress.seconds += 3600 * (number == 3)
            return step(number, tokens)

        monkeypatch.setattr(second.optimizer, "step", late)

    plan = TrainingConfig(max_steps=9, max_epochs=None, max_minutes=30, validate_every=1000)
    pair, told = fit_together(classifier(0.0), plan, to_second=hurry)
    assert [trainer.progress.step for trainer in pair] == [3, 3]
    assert told[0].validated() == [3]


def exchange(rank: int, store: str) -> tuple[Any, ...]:
    """What one of two processes gets by gloo; each calls it in a process of its own."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    processes = Processes(rank, 2)
    tensors = [torch.full((2, 3), 1.0 + rank), torch.tensor(10.0 * rank)]
    processes.all_reduce(tensors)
    flags = processes.any(rank == 0, rank == 1, False)
    gathered = processes.gather({rank: "x", rank + 2: "y"})
    found = [x.tolist() for x in tensors], flags, processes.broadcast(f"of {rank}"), gathered
    dist.destroy_process_group()
    return found


def test_processes_add_agree_and_tell_each_other(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        first, second = pool.map(exchange, (0, 1), [str(tmp_path / "store")] * 2, timeout=300)
    both = [[[3.0] * 3] * 2, 10.0], [True, True, False], "of 0"
    assert first == (*both, {0: "x", 1: "x", 2: "y", 3: "y"})
    assert second == (*both, {})


def test_each_process_has_the_gpu_of_its_place_on_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.device] = []
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert own_device(cpu) == cpu
    assert not taken
    assert own_device(gpu) == torch.device("cuda", 1)
    assert taken == [torch.device("cuda", 1)]
    monkeypatch.delenv("LOCAL_RANK")
    assert own_device(gpu) == torch.device("cuda", 0)


@pytest.mark.parametrize(("rank", "order"), [(0, ["works", "meets"]), (1, ["meets", "works"])])
def test_the_others_work_when_the_first_is_done(rank: int, order: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(Processes, "broadcast", lambda *_: told.append("meets"))
    with Processes(rank, 2).first_alone():
        told.append("works")
    assert told == order


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_what_torchrun_has_started_joins_by_what_the_device_has(
    device: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout: told.append((backend, timeout.days)))
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: told.append("left"))
    monkeypatch.setenv("WORLD_SIZE", "3")

    def fail() -> None:
        with joined_processes(torch.device(device)) as processes:
            told.append((processes.rank, processes.size))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert told == [(backend, 2), (2, 3), "left"]
