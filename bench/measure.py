"""What all benchmarks share: options, processes and rounds, what this machine can do, operations by hand, output."""

import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from config.model import TransformerConfig
from layers.packed import multiplies_int8
from utils import device as device_module
from utils.command import Parser, option_of, print_above_bars
from utils.device import WORTH_IT, synchronize
from utils.file import require_outputs, write_json

_CPU = torch.device("cpu")
_LARGEST = 8192  # rows of the matrices that a peak is taken with
_LONG_ENOUGH = 0.05  # seconds of a product: larger ones are not faster
_EMULATED = 0.25  # times the speed of single precision: less is not had from any instruction for it

Low = Literal["bf16", "int8"]
P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=Hashable)


def benchmark_parser(name: str, description: str, examples: str, **numbers: tuple[float, str]) -> Parser:
    """Return the parser of a benchmark; each of its numbers has a default and a help text."""
    parser = Parser(
        prog=f"bench.{name}",
        usage=f"python -m bench.{name} [OPTION ...]",
        description=description,
        epilog=f"examples:\n{examples}",
    )
    for option, (default, text) in numbers.items():
        text = f"{text} (default: {default:,})"
        parser.add_argument(option_of(option), type=type(default), default=default, metavar="N", help=text)
    parser.add_argument("--json", type=_new_file, metavar="FILE", help="write all figures to this file")
    return parser


def _new_file(name: str) -> Path:
    try:  # before anything is measured
        require_outputs({"--json": Path(name)})
    except ValueError as error:  # argparse would not show its message
        raise ArgumentTypeError(str(error)) from error
    return Path(name)


def in_own_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a fresh process, for its own peak of memory: a forked child would inherit its parent's."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def in_rounds(settings: Sequence[S], measure: Callable[[S], T], rounds: int) -> dict[S, list[T]]:
    """Measure the settings in turns, so that a machine that slows down in the meantime slows all of them."""
    results: dict[S, list[T]] = {setting: [] for setting in settings}
    with tqdm(total=rounds * len(settings), unit="measurement", disable=None) as bar:
        for _ in range(rounds):
            for setting in settings:
                if bar.disable:  # no terminal
                    print_above_bars(f"{sum(map(len, results.values())) + 1} of {bar.total}: {setting}")
                bar.set_postfix_str(str(setting))
                results[setting].append(measure(setting))
                bar.update()
    return results


def product_peak(dtype: torch.dtype, device: torch.device = _CPU) -> float:
    """Return the GFLOP/s of matrix products, found in about a second at any speed: they grow until they take long."""
    product = torch._int_mm if dtype == torch.int8 else torch.mm
    size, peak, seconds = 128, 0.0, 0.0
    while seconds < _LONG_ENOUGH and size < _LARGEST:
        size *= 2
        a = torch.ones(size, size, dtype=dtype, device=device)
        for _ in range(4):
            synchronize(device)
            begin = time.perf_counter()
            product(a, a)
            synchronize(device)
            seconds = time.perf_counter() - begin
            peak = max(peak, 2 * size**3 / seconds / 1e9)
    return peak


def reading_speed(n_bytes: int) -> float:
    """Return the GB/s at which numbers that take this many bytes are read: added up, with all threads."""
    numbers, times = torch.ones(n_bytes // 4), []
    for _ in range(20):
        begin = time.perf_counter()
        numbers.sum()
        times.append(time.perf_counter() - begin)
    return numbers.nbytes / min(times) / 1e9


def precisions(asked: Sequence[Low] | None, candidates: Sequence[Low], d_model: int, learning: bool) -> list[str]:
    """Return fp32 and the precisions to be measured beside it on this CPU, and say which are left out.

    Unless some are asked for, those that `auto` could choose for a network of this width.
    """
    if asked is not None:
        return [*asked, "fp32"]
    kept: list[str] = []
    for name in candidates:
        if name == "int8" and not multiplies_int8():
            reason = "this processor does not add its products exactly, or slowly"
        elif (speed := device_module.speedup(name, d_model, learning)) < WORTH_IT:
            reason = f"{speed:.2g} times as fast as fp32 here{', emulated' if speed < _EMULATED else ''}"
        else:
            kept.append(name)
            continue
        print(f"{name} is left out: {reason}; --precisions {name} measures it all the same", flush=True)
    return [*kept, "fp32"]


def publish(figures: Mapping[str, float | str], record: Mapping[str, object], file: Path | None) -> None:
    """Print figures as `name=value name=value`, and write them to a file, if one is given, beside what was measured."""
    shown = (f"{name}={f'{value:.3f}' if isinstance(value, float) else value}" for name, value in figures.items())
    print("\n" + " ".join(shown))
    if file is not None:
        write_json(file, {**record, "figures": figures})


def training_flops(
    config: TransformerConfig, tgt_vocab: int, src: NDArray[np.int64], tgt: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the operations of `forward_flops` and of the backward pass, which counts twice the forward pass."""
    return 3 * forward_flops(config, tgt_vocab, src, tgt)


def forward_flops(
    config: TransformerConfig, tgt_vocab: int, src: NDArray[np.int64], tgt: NDArray[np.int64], beams: int = 1
) -> NDArray[np.int64]:
    """Return the operations of the forward pass, or of a cached search, for each pair, counted by hand from shapes.

    Only matrix products count, 2 per multiply-add, over real tokens: padding, dropout, norms and softmax are not useful
    work. Attention counts as whole squares, causal or not (as in Chowdhery et al. 2022, appendix B).

    Args:
        src: number of tokens of each source, </s> included.
        tgt: number of tokens to predict in each target, </s> included.
        beams: hypotheses of a search, which share keys and values of the source.
    """
    d = config.d_model
    block = 8 * d * d + 4 * d * config.d_ff  # a token through query, key, value, output and the feed-forward layer
    encoder = src * block + 4 * d * src * src  # QKᵀ and its product with V, over all heads
    decoder = tgt * (block + 4 * d * d) + 4 * d * tgt * (tgt + src)  # with query and output of the other attention
    rest = config.n_decoder_layers * src * 4 * d * d  # key and value of the source
    return (
        config.n_encoder_layers * encoder + rest + beams * (config.n_decoder_layers * decoder + tgt * 2 * d * tgt_vocab)
    )
