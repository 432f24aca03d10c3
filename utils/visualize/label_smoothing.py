"""The effect of label smoothing on the loss: full certainty costs more than a little doubt."""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from utils.training.projected_cross_entropy import projected_cross_entropy
from utils.visualize.sheet import sheet

_VOCAB = 100
_SMOOTHINGS = (0.0, 0.1, 0.2)


def smoothed_losses(probabilities: Sequence[float], smoothing: float) -> Float[Tensor, " N"]:
    """Return the loss in nats of a token predicted with each probability; other tokens share the rest equally."""
    p = torch.tensor(probabilities)
    logits = ((1 - p) / (_VOCAB - 1)).log()[:, None].repeat(1, _VOCAB)
    logits[:, 0] = p.log()
    right, weight = torch.zeros(1, dtype=torch.long), torch.eye(_VOCAB)
    return torch.stack([projected_cross_entropy(row[None], weight, None, right, smoothing) for row in logits])


def draw_label_smoothing(picture: Path) -> None:
    """Draw the loss against the probability of the right token, with a line for each ε and its minimum marked."""
    p = torch.linspace(0.02, 0.998, 490).tolist()
    with sheet(picture, (6.5, 3.8)) as (axes,):
        for smoothing in _SMOOTHINGS:
            losses = smoothed_losses(p, smoothing)
            (line,) = axes.plot(p, losses.numpy(), label=f"ε = {smoothing:g}")
            if smoothing:
                least = int(losses.argmin())
                axes.plot(p[least], losses[least].item(), "o", color=line.get_color())
        axes.set(xlabel="probability of the right token", ylabel="nats per target token", ylim=(0, 4))
        axes.set_title(f"Label smoothing, {_VOCAB} tokens; dots: the least loss")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
