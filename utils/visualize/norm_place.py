"""Gradient norms by depth before training, with the norm first or last (Xiong et al. 2020)."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from layers.encoder_block import EncoderBlock
from layers.feed_forward import FeedForward
from layers.multi_head_attention import MultiHeadAttention
from models.weight import initialise
from utils.visualize.sheet import sheet

_N_LAYERS, _N_DRAWS = 12, 4
_D_MODEL, _N_HEADS, _N_CLASSES = 64, 4, 64


def gradient_norms(norm_first: bool, n_layers: int = _N_LAYERS, seed: int = 0) -> list[float]:
    """Return the gradient norms of W₂ of each block's feed-forward layer, for a loss on top of a stack of blocks.

    Args:
        norm_first: place of the norms; with the norm first, one more follows the last block.
        n_layers: number of blocks.
        seed: random seed of weights, input and targets.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        blocks = [_block(norm_first) for _ in range(n_layers)]
        output = nn.Linear(_D_MODEL, _N_CLASSES)
        initialise(nn.ModuleList([*blocks, output]))
        x, target = torch.randn(8, 16, _D_MODEL), torch.randint(_N_CLASSES, (8 * 16,))
    for block in blocks:
        x = block(x)
    if norm_first:
        x = F.layer_norm(x, (_D_MODEL,))
    weights = [block.feed_forward.narrow.weight for block in blocks]
    gradients = torch.autograd.grad(F.cross_entropy(output(x).flatten(0, 1), target), weights)
    return [gradient.norm().item() for gradient in gradients]


def _block(norm_first: bool) -> EncoderBlock:
    attention, feed_forward = MultiHeadAttention(_D_MODEL, _N_HEADS), FeedForward(_D_MODEL, 4 * _D_MODEL)
    return EncoderBlock(attention, feed_forward, _D_MODEL, norm_first=norm_first)


def draw_norm_place(picture: Path) -> None:
    """Draw the gradient norm against depth, averaged over some seeds, with a line for each place of the norm."""
    with sheet(picture, (6.5, 3.8)) as (axes,):
        for norm_first, label in ((True, "norm first: x + f(norm(x))"), (False, "norm last: norm(x + f(x))")):
            draws = torch.tensor([gradient_norms(norm_first, seed=seed) for seed in range(_N_DRAWS)])
            axes.plot(range(1, _N_LAYERS + 1), draws.mean(0).numpy(), "o-", ms=4, label=label)
        axes.set(xlabel="block, from the input up", ylabel="norm of the gradient of W₂", ylim=(0, None))
        axes.set_title("Gradients before the first update")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="lower left")
