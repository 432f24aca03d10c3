"""What a decoder looks at in the source while it writes."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import matplotlib_fontja
import torch
from torch import Tensor

from layers.decoder_block import DecoderBlock
from layers.recorded_weights import recorded_weights
from models.transformer import Transformer
from utils.dataset.batch import padded
from utils.file import atomic_file

_INCHES_PER_TOKEN = 0.27


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
    matplotlib_fontja.japanize()
    plt.rcParams["font.family"] = [*plt.rcParams["font.family"], "DejaVu Sans"]  # for the ▁ of SentencePiece
    layers = weights.mean(1).numpy()
    n, rows, columns = layers.shape
    size = (1.5 + n * (1 + columns * _INCHES_PER_TOKEN), 1.6 + rows * _INCHES_PER_TOKEN)
    figure, axes = plt.subplots(1, n, figsize=size, squeeze=False, sharey=True, layout="constrained")
    for i, (ax, weight) in enumerate(zip(axes[0], layers, strict=True)):
        image = ax.imshow(weight, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        ax.set_title(f"decoder layer {i + 1}", fontsize=10)
        ax.set_xticks(range(columns), src_tokens, rotation=90, fontsize=9)
        ax.set_yticks(range(rows), tgt_tokens, fontsize=9)
        ax.tick_params(length=0)
    figure.colorbar(image, ax=axes[0], shrink=0.7, label="weight, mean over heads")
    with atomic_file(picture) as draft:
        figure.savefig(draft, format="png", dpi=110)
    plt.close(figure)
