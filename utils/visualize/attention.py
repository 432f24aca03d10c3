"""What a decoder looks at in the source while it writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import matplotlib_fontja
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from torch import Tensor

from layers.decoder_block import DecoderBlock
from layers.recorded_weights import recorded_weights
from models.transformer import Transformer
from utils.dataset.batch import padded
from utils.file import atomic_file

_INCHES_PER_TOKEN = 0.27
_HEADS_ABREAST = 4


class Attended(NamedTuple):
    """Where one attention looks, with the tokens that its rows and columns stand for."""

    weights: Float[Tensor, "H T S"]
    src_tokens: Sequence[str]
    tgt_tokens: Sequence[str]


@torch.inference_mode()
def cross_attention(model: Transformer, src: Sequence[int], tgt: Sequence[int]) -> Tensor:
    """Weights (layers, H, T, S) with which each target token was chosen, given a pair of id sequences.

    Row t belongs to the prediction of target token t (the last: </s>), column s to source token s (the last: </s>).
    """
    model.eval()
    device = next(model.parameters()).device
    attentions = [block.cross_attention.attention for block in model.decoder if isinstance(block, DecoderBlock)]
    with recorded_weights(attentions) as weights:
        model(padded([src]).to(device), padded([tgt], bos=True)[:, :-1].to(device))
    return torch.cat(weights).cpu()


def draw_cross_attention(weights: Tensor, src_tokens: Sequence[str], tgt_tokens: Sequence[str], picture: Path) -> None:
    """Draw weights (layers, H, T, S) as one heat map a layer, averaged over heads, source across, target down."""
    _use_fonts()
    layers = weights.mean(1)
    n, rows, columns = layers.shape
    size = (1.5 + n * (1 + columns * _INCHES_PER_TOKEN), 1.6 + rows * _INCHES_PER_TOKEN)
    figure, axes = plt.subplots(1, n, figsize=size, squeeze=False, sharey=True, layout="constrained")
    for i, (ax, weight) in enumerate(zip(axes[0], layers, strict=True)):
        image = _heat_map(ax, weight, src_tokens, tgt_tokens, f"decoder layer {i + 1}")
    figure.colorbar(image, ax=axes[0], shrink=0.7, label="weight, mean over heads")
    with atomic_file(picture) as draft:
        figure.savefig(draft, format="png", dpi=110)
    plt.close(figure)


def draw_heads(sentences: Sequence[Attended], picture: Path) -> None:
    """Draw every head by itself, those of a sentence together and the sentences below one another.

    Args:
        sentences: source across, target down; with heads alike in number.
        picture: where to draw, as PNG.
    """
    _use_fonts()
    n_heads = len(sentences[0].weights)
    columns = min(n_heads, _HEADS_ABREAST)
    rows = -(-n_heads // columns)
    # so wide and high as a sentence is long, with some room for the title of a map and the labels around the grid
    longest = max(len(sentence.src_tokens) for sentence in sentences)
    width = 2.5 + columns * (0.3 + longest * _INCHES_PER_TOKEN)
    heights = [1.3 + rows * (0.3 + len(sentence.tgt_tokens) * _INCHES_PER_TOKEN) for sentence in sentences]
    figure = plt.figure(figsize=(width, sum(heights)), layout="constrained")
    places = figure.add_gridspec(len(sentences), longest, height_ratios=heights)
    for row, sentence in enumerate(sentences):
        # beside a much longer one, a short sentence must still have room for its labels
        part = figure.add_subfigure(places[row, : max(len(sentence.src_tokens), longest // 3)])
        axes = part.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for i, ax in enumerate(axes.flat):
            if i < n_heads:
                image = _heat_map(ax, sentence.weights[i], sentence.src_tokens, sentence.tgt_tokens, f"head {i + 1}")
                ax.tick_params(labelbottom=i + columns >= n_heads)  # nothing but labels below it
            else:
                ax.set_axis_off()
        part.colorbar(image, ax=axes[0], fraction=0.05, label="weight")
    with atomic_file(picture) as draft:
        figure.savefig(draft, format="png", dpi=110)
    plt.close(figure)


def _use_fonts() -> None:
    """Those that have a glyph for Japanese, and for the ▁ of SentencePiece."""
    matplotlib_fontja.japanize()
    plt.rcParams["font.family"] = [*plt.rcParams["font.family"], "DejaVu Sans"]


def _heat_map(
    ax: Axes, weight: Float[Tensor, "T S"], src_tokens: Sequence[str], tgt_tokens: Sequence[str], title: str
) -> AxesImage:
    image = ax.imshow(weight.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    ax.set_title(title, fontsize=10)
    ax.set_xticks(range(len(src_tokens)), src_tokens, rotation=90, fontsize=9)
    ax.set_yticks(range(len(tgt_tokens)), tgt_tokens, fontsize=9)
    ax.tick_params(length=0)
    return image
