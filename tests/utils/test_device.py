import os

import pytest
import torch

from config.training import Device, Precision
from utils import device as device_module
from utils.device import autocast, has_fast_bf16, inference_dtype, keep_compiled_kernels, pick_device

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("wanted", "there", "picked"),
    [
        ("auto", True, "cuda"),
        ("auto", False, "cpu"),
        ("cpu", True, "cpu"),
        ("cpu", False, "cpu"),
        ("cuda", True, "cuda"),
    ],
)
def test_cuda_is_taken_where_it_is_unless_the_cpu_is_wanted(
    monkeypatch: pytest.MonkeyPatch, wanted: Device, there: bool, picked: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert pick_device(wanted) == torch.device(picked)


def test_cuda_that_is_not_there_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^device=cuda, but CUDA is not available here: use device=cpu[^\n]*$"):
        pick_device("cuda")


@pytest.mark.parametrize(
    ("precision", "fast", "dtype"),
    [
        ("fp32", True, torch.float32),
        ("fp32", False, torch.float32),
        ("bf16", True, torch.bfloat16),
        ("bf16", False, torch.bfloat16),
        ("auto", True, torch.bfloat16),
        ("auto", False, torch.float32),
    ],
)
def test_matrix_products_run_in_the_precision_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, precision: Precision, fast: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(device_module, "has_fast_bf16", lambda _: fast)
    x = torch.ones(2, 2)
    with autocast(CPU, precision):
        assert (x @ x).dtype == dtype
    assert (x @ x).dtype == torch.float32


def test_single_precision_inside_a_lower_one_is_single() -> None:
    x = torch.ones(2, 2)
    with autocast(CPU, "bf16"), autocast(CPU, "fp32"):
        assert (x @ x).dtype == torch.float32


@pytest.mark.parametrize(
    ("precision", "where", "fast", "dtype"),
    [
        ("fp32", "cpu", True, torch.float32),
        ("bf16", "cpu", False, torch.bfloat16),
        ("auto", "cpu", True, torch.bfloat16),
        ("auto", "cpu", False, torch.float32),
        ("auto", "cuda", True, torch.bfloat16),
        ("auto", "cuda", False, torch.float32),
        ("fp16", "cuda", False, torch.float16),
    ],
)
def test_a_model_that_has_learned_computes_in_the_precision_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, precision: Precision, where: str, fast: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(device_module, "has_fast_bf16", lambda _: fast)
    assert inference_dtype(torch.device(where), precision) == dtype


def test_half_precision_that_a_cpu_does_not_have_is_an_error_of_one_line() -> None:
    with pytest.raises(ValueError, match=r"^precision=fp16 needs CUDA: use bf16 or fp32 on a CPU$"):
        inference_dtype(CPU, "fp16")


@pytest.mark.parametrize(
    ("capabilities", "fast"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True),
        ({"amx_bf16": True}, True),
        ({"bf16": True}, True),  # Arm
        ({"avx512_bf16": False, "avx512_f": True}, False),
        ({}, False),
    ],
)
def test_a_cpu_is_fast_in_bf16_if_it_has_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], fast: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert has_fast_bf16(CPU) is fast


def test_an_older_torch_does_not_know_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert not has_fast_bf16(CPU)


@pytest.mark.parametrize(("capability", "fast"), [((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 0), True)])
def test_a_gpu_is_fast_in_bf16_from_ampere_on(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], fast: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert has_fast_bf16(torch.device("cuda")) is fast


def test_kernels_are_remembered_unless_the_user_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, "to be restored")
    monkeypatch.delenv(name)
    keep_compiled_kernels()
    assert int(os.environ[name]) > 1024  # oneDNN's own
    monkeypatch.setenv(name, "7")
    keep_compiled_kernels()
    assert os.environ[name] == "7"
