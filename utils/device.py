"""Where to compute, and in which precision."""

import os
import time
from contextlib import AbstractContextManager
from functools import cache
from typing import Literal

import torch
from torch import nn

from config.training import NO_CUDA, Device, InferencePrecision, Precision
from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock
from layers.feed_forward import FeedForward
from layers.packed import multiplies_int8, packed

_DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WORTH_IT = 1.2  # times as fast as in single precision: for less, nobody should have to think of rounding


def pick_device(wanted: Device = "auto", precision: InferencePrecision = "auto") -> torch.device:
    """Return the requested device, by default CUDA if available, else the CPU; refuse a precision that it lacks."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError(NO_CUDA)
    # the first choice on recent GPUs: with a mask it plans anew for each shape of a batch, and each step of a decoder
    torch.backends.cuda.enable_cudnn_sdp(False)
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted)
    require_precision(device, precision)
    return device


def require_precision(device: torch.device, precision: InferencePrecision) -> None:
    """Refuse a precision that a device cannot compute in at a useful speed."""
    if precision == "fp16" and device.type == "cpu":
        raise ValueError("precision=fp16 needs CUDA: use bf16 or fp32 on a CPU")
    if precision == "int8" and device.type == "cuda":
        raise ValueError("precision=int8 is for a CPU: use bf16 or fp16 on a GPU")


def share_threads() -> int:
    """Return how many searches are to run at a time on this CPU: two, each with half of its threads from now on.

    A step for a few sentences is so little work that a second thread lengthens it (8.5 ms against 6.4 for the shipped
    translators and a sentence, 20 against 17 for eight, on two processors), and two steps at once take half as long.
    """
    if (n_threads := torch.get_num_threads()) < 2:
        return 1
    torch.set_num_threads(n_threads // 2)
    return 2


@cache
def speedup(precision: Literal["bf16", "int8"], d_model: int, learning: bool) -> float:
    """Return how many times as fast as in single precision this CPU is in another, for a network of this width.

    Its list of instructions does not tell: a processor may have those for bfloat16 and be half as fast in it. So a
    feed-forward layer is measured for some 50 milliseconds, forward and backward (learning), or packed and forward for
    as many rows as a search has. The time counted is that of one thread, which other processes do not lengthen.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    layer, bf16 = FeedForward(d_model, d_model), precision == "bf16"
    x = torch.ones(max(64, 2**24 // d_model**2) if learning else 64, d_model)
    dtypes = torch.float32, torch.bfloat16 if bf16 else torch.float32
    twins = (layer, layer) if learning else (packed(layer, dtypes[0]), packed(layer, dtypes[1], int8=not bf16))
    seconds: tuple[list[float], list[float]] = [], []
    for i in range(4):
        for dtype, twin, times in zip(dtypes, twins, seconds, strict=True):
            begin = time.thread_time()
            with torch.set_grad_enabled(learning), torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
                y = twin(x)
            if learning:
                y.sum().backward()
            times.append(time.thread_time() - begin)
        if i and sum(seconds[1]) > 0.1:  # without instructions for it
            break
    torch.set_num_threads(n_threads)
    fp32, other = (min(times[1:]) for times in seconds)  # the first compiled
    return fp32 / other


def resolve_precision(precision: Precision, device: torch.device, d_model: int, learning: bool = False) -> Precision:
    """Return the precision of matrix products: as requested, or (auto) bf16 where it is worth it, else fp32."""
    if precision != "auto":
        return precision
    if device.type == "cuda":  # tensor cores: since Volta in fp16, since Ampere in bf16
        capability = torch.cuda.get_device_capability(device)
        return "bf16" if capability >= (8, 0) else "fp16" if capability >= (7, 0) else "fp32"
    return "bf16" if speedup("bf16", d_model, learning) >= WORTH_IT else "fp32"


def packing(precision: InferencePrecision, device: torch.device, d_model: int) -> tuple[torch.dtype, bool]:
    """Return how to pack a network of this width for inference: in which type, and whether its linear layers in int8.

    int8: all else in single precision. auto: as `resolve_precision`, but int8 on a CPU where it, not bf16, is worth it.
    """
    int8 = precision == "int8"
    products = "fp32" if precision == "int8" else resolve_precision(precision, device, d_model)
    if precision == "auto" and products == "fp32" and device.type == "cpu" and multiplies_int8():
        int8 = speedup("int8", d_model, learning=False) >= WORTH_IT
    return product_dtype(products), int8


def product_dtype(precision: Precision) -> torch.dtype:
    """Return the type of matrix products in a precision that is not auto."""
    return _DTYPE[precision]


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[None]:
    """Run the block's matrix products in this precision, which is not auto."""
    dtype = product_dtype(precision)
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def compile_blocks(net: nn.Module) -> None:
    """Have each block compiled at its first call, for batches of any shape; equal ones share what was compiled."""
    torch._dynamo.config.recompile_limit = 64  # beyond 8 kinds of shapes it would give up, and say so once
    for part in net.modules():
        if isinstance(part, EncoderBlock | DecoderBlock):
            part.compile(dynamic=True)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def keep_compiled_kernels() -> None:
    """Have oneDNN cache more of the kernels that it compiles for bfloat16, unless the user sets how many.

    It compiles a kernel for each shape, some forty for each new shape of a batch: 15 to 20 ms of a single core. Its
    default of about a thousand is fewer than an epoch needs; this many covers most of them, for a gigabyte and a half
    at worst. To be called before the first matrix product, which creates the cache.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")
