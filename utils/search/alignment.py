"""Alignment: which source token each target token comes from, as far as the decoder's attention shows it."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from layers.recorded_weights import recorded_weights
from models.transformer import Transformer
from utils.dataset.batch import padded, within_budget
from utils.search.attention_map import attentions

_TOKENS_PER_BATCH = 8192  # positions of the longer side, padding included

Links = list[tuple[int, int]]  # (source, target) positions, counted from 0


def align(
    models: Sequence[Transformer], sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[Links]:
    """Link each target token to the source token that the decoder's last layer attends to most when predicting it.

    Attention is not alignment, but its mean over the heads of a layer can come close. The </s> of the source, where
    heads that have nothing to look for rest, is never chosen.

    Args:
        models: in eval mode; the weights of several are averaged.
        sources: ids without </s>.
        targets: their translations, without <s> and </s>.

    Returns:
        For each pair, one link per target token, in order; none where the source is empty.
    """
    weights = mean_cross_attention(models, sources, targets)
    return [most_attended(found[:, :-1]) if source else [] for source, found in zip(sources, weights, strict=True)]


@torch.inference_mode()
def mean_cross_attention(
    models: Sequence[Transformer], sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[Float[Tensor, "T S"]]:
    """Return how much the decoder's last layer attends to each source token when predicting each target token.

    Args:
        models: in eval mode; the weights of several are averaged.
        sources: ids without </s>.
        targets: their translations, without <s> and </s>.

    Returns:
        For each pair the mean over heads: a row for each target token, a column for each source token and its </s>.
    """
    found = [torch.empty(0)] * len(sources)
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    for rows in within_budget(lengths, _TOKENS_PER_BATCH):
        src = padded([sources[i] for i in rows])
        tgt = padded([targets[i] for i in rows], bos=True)[:, :-1]
        weights = torch.stack([_last_weights(model, src, tgt) for model in models]).mean(0)
        for i, weight in zip(rows, weights, strict=True):
            found[i] = weight[: len(targets[i]), : len(sources[i]) + 1]
    return found


def most_attended(weights: Float[Tensor, "T S"]) -> Links:
    """Link each target position to the source position with the largest weight."""
    return [(source, target) for target, source in enumerate(weights.argmax(-1).tolist())]


def pharaoh(links: Links) -> str:
    """Write links as `0-0 1-2`: the format of Pharaoh, Moses and the aligners around them."""
    return " ".join(f"{source}-{target}" for source, target in links)


def _last_weights(model: Transformer, src: Tensor, tgt: Tensor) -> Tensor:
    """Return the weights (B, T, S) of the last cross-attention, averaged over heads."""
    device = next(model.parameters()).device
    with recorded_weights(attentions(model)["cross"][-1:]) as weights:
        model.hidden(src.to(device), tgt.to(device))
    return weights[0].mean(1).float().cpu()
