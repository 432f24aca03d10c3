"""What all benchmarks share: the peak speed of this machine, operations counted by hand, and output of figures."""

import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from config.model import TransformerConfig
from utils.device import synchronize
from utils.file import require_file, write_json

# Peak speed of this machine, as a reference for measurements.

_CPU = torch.device("cpu")


def product_peak(dtype: torch.dtype, device: torch.device = _CPU) -> float:
    """Return the GFLOP/s of a large matrix product, the best of several."""
    size = 8192 if device.type == "cuda" else 2048
    a = torch.randn(size, size, device=device).to(dtype)
    best = float("inf")
    for _ in range(6):
        synchronize(device)
        begin = time.perf_counter()
        a @ a
        synchronize(device)
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best / 1e9


# Output of all benchmarks: figures in one line, and in a file for programs.

Figure = float | str


def add_json_option(parser: ArgumentParser) -> None:
    """Add the option --json; an impossible place is refused before anything is measured."""
    parser.add_argument("--json", type=_place_of_a_file, metavar="FILE", help="write all figures to this file")


def _place_of_a_file(name: str) -> Path:
    try:
        require_file(Path(name))
    except ValueError as error:  # argparse would not show its message
        raise ArgumentTypeError(str(error)) from error
    return Path(name)


def publish(figures: Mapping[str, Figure], about: Mapping[str, object], file: Path | None) -> None:
    """Print figures as `name=value name=value`, and write them to a file together with their context.

    Args:
        figures: figures by name; floats are printed with three digits.
        about: further content of the file.
        file: file to write; None: no file.
    """
    print("\n" + " ".join(f"{name}={_printed(value)}" for name, value in figures.items()))
    if file is not None:
        write_json(file, {**about, "figures": figures})


def _printed(value: Figure) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


# Floating-point operations that a model needs to learn from text, counted by hand from shapes.
#
# Only matrix products count, 2 per multiply-add, over real tokens: padding, dropout, norms and softmax are not useful
# work. Attention counts as whole squares, causal or not (as in Chowdhery et al. 2022, appendix B), and the backward
# pass counts twice the forward pass.


def training_flops(
    config: TransformerConfig, tgt_vocab: int, src: NDArray[np.int64], tgt: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the operations of the forward and the backward pass for each pair.

    Args:
        config: architecture of the model.
        tgt_vocab: size of the target vocabulary.
        src: number of tokens of each source, </s> included.
        tgt: number of tokens to predict in each target, </s> included.
    """
    d = config.d_model
    projection = 2 * d * d  # a token through one of query, key, value, output
    feed_forward = 4 * d * config.d_ff
    encoder = src * (4 * projection + feed_forward) + _attention(src, src, d)
    decoder = (
        tgt * (4 * projection + feed_forward)
        + _attention(tgt, tgt, d)
        + (tgt + src) * 2 * projection  # query and output of the target, key and value of the source
        + _attention(tgt, src, d)
    )
    output = tgt * 2 * d * tgt_vocab
    return 3 * (config.n_encoder_layers * encoder + config.n_decoder_layers * decoder + output)


def _attention(queries: NDArray[np.int64], keys: NDArray[np.int64], d_model: int) -> NDArray[np.int64]:
    """Count QKᵀ and its product with V, over all heads."""
    return 4 * queries * keys * d_model
