"""A batch too large for the memory: what the user reads."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from utils.dataset.batch import Batch, BatchConfig
from utils.device import return_freed_memory
from utils.training.device_memory import explained_out_of_memory, forget_peak, peak_memory, total_memory

CONFIG = BatchConfig(tokens_per_batch=4096, accumulate=3, max_tokens=128)
SMALL = Batch(torch.ones(2, 9, dtype=torch.long), torch.ones(2, 5, dtype=torch.long))
LARGE = Batch(torch.ones(1024, 12, dtype=torch.long), torch.ones(1024, 15, dtype=torch.long))
SAID = (
    "out of memory at a batch of 1,024 x 12 source and 1,024 x 14 target tokens: "
    "lower --batch.tokens_per_batch (now 4096) and raise --batch.accumulate (now 3) to keep the size of an update, "
    "say --batch.tokens_per_batch 2048 --batch.accumulate 6"
)


class Greedy(nn.Module):
    """Takes more than any machine has, in its forward or in its backward."""

    def forward(self, x: Tensor, late: bool) -> Tensor:
        if late:
            x.register_hook(lambda gradient: gradient + torch.empty(2**60)[0])
            return x.sum()
        return torch.empty(2**60).sum() + x.sum()


@pytest.mark.parametrize("late", [False, True], ids=["forward", "backward"])
def test_a_batch_that_does_not_fit_is_named_with_the_option_to_lower(late: bool) -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match=re.escape(SAID)) as caught, explained_out_of_memory([SMALL, LARGE], CONFIG):
        Greedy()(x * 1, late).backward()
    assert str(caught.value) == SAID


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported asynchronously"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=repr,
)
def test_what_a_gpu_and_numpy_say_is_explained_too(error: Exception) -> None:
    expected = "^out of memory at a batch of 2 x 9 source and 2 x 4 target tokens: lower --batch"
    with pytest.raises(ValueError, match=expected), explained_out_of_memory([SMALL], CONFIG):
        raise error


def test_an_array_that_numpy_cannot_hold_is_explained() -> None:
    with pytest.raises(ValueError, match=r"^out of memory"), explained_out_of_memory([SMALL], CONFIG):
        np.empty(2**57)


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), KeyError("x")], ids=repr)
def test_any_other_error_passes(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, explained_out_of_memory([LARGE], CONFIG):
        raise error
    assert caught.value is error


def test_a_process_without_a_batch_passes_the_error_on() -> None:
    with pytest.raises(MemoryError), explained_out_of_memory([], CONFIG):
        raise MemoryError


def test_the_largest_batch_is_that_of_the_most_positions() -> None:
    full, padded = torch.ones(4, 4, dtype=torch.long), torch.zeros(4, 9, dtype=torch.long)
    padded[:, 0] = 1
    batches = [Batch(full, full), Batch(padded, padded)]
    with (
        pytest.raises(ValueError, match=r"^out of memory at a batch of 4 x 9 "),
        explained_out_of_memory(batches, CONFIG),
    ):
        raise MemoryError


def test_where_a_single_pair_is_the_batch_its_length_is_to_be_lowered() -> None:
    narrow, expected = BatchConfig(tokens_per_batch=100, max_tokens=128), r"lower --batch.max_tokens \(now 128\)$"
    with pytest.raises(ValueError, match=expected), explained_out_of_memory([SMALL], narrow):
        raise MemoryError


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux forgets a peak")
def test_a_peak_is_of_the_time_since_it_was_forgotten() -> None:
    cpu, mib = torch.device("cpu"), 2**20
    torch.ones(100 * mib)  # 400 MiB
    high = peak_memory(cpu)
    return_freed_memory()  # of which a training before this test may have had some kept
    forget_peak(cpu)
    begin = peak_memory(cpu)
    assert begin < high - 300 * mib
    torch.ones(50 * mib)
    assert begin + 190 * mib < peak_memory(cpu) < begin + 250 * mib
    assert high < total_memory(cpu)


@pytest.mark.gpu
def test_a_peak_on_a_gpu_is_of_its_tensors() -> None:
    cuda = torch.device("cuda")
    torch.ones(2**20, device=cuda)
    forget_peak(cuda)
    begin = peak_memory(cuda)
    torch.ones(2**18, device=cuda)
    assert peak_memory(cuda) == begin + 2**20 < total_memory(cuda)
