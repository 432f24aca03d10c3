"""Decoding one token at a time without ever looking back: what greedy search and sampling share."""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from const.token import EOS_ID, PAD_ID
from utils.search.constraint import Constraint
from utils.search.hypothesis import (
    NO_NUMBERS,
    Bounds,
    Hypothesis,
    Searchable,
    SearchConfig,
    StateT,
    bos_rows,
    next_log_probs,
)
from utils.search.staying import who_stays

# log-probabilities (N, W, V), the numbers of these sentences (N,), and the number of tokens so far -> tokens (N, W)
Choice = Callable[[Tensor, Tensor, int], Tensor]


@torch.inference_mode()
def walk(
    model: Searchable[StateT],
    src: Int[Tensor, "N S"],
    bounds: Sequence[Bounds],
    config: SearchConfig,
    choose: Choice,
    width: int = 1,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Translate N sources, each `width` times; a sentence whose rows have all ended leaves the batch.

    Args:
        model: in eval mode.
        src: source ids, each sequence followed by </s>, then padding.
        bounds: length limits of each translation.
        config: the length penalty and what may not be repeated.
        choose: picks the next tokens among those that are allowed.
        width: translations per source.
        prefixes: tokens that each translation must begin with.

    Returns:
        For each source, in order, its hypotheses in the order of their rows.

    Raises:
        ValueError: the model's probabilities are not finite numbers.
    """
    device = src.device
    n = len(src)
    constraint = Constraint(bounds, device, prefixes, config.no_repeat_ngram)
    ids = torch.full((n, width, constraint.longest), PAD_ID, device=device)
    scores = torch.zeros(n, width, device=device)
    alive = torch.arange(n, device=device)
    state = model.start(src).select(alive[:, None].expand(-1, width))
    tokens = bos_rows(n * width, device)
    for t in range(constraint.longest):
        logits, state = model.step(tokens, state)
        log_probs = next_log_probs(logits).unflatten(0, (-1, width))
        said = ids[alive, :, :t]
        constraint.apply(log_probs, said)
        # a row that has ended waits for its siblings
        over = (said == EOS_ID).any(-1)
        chosen = choose(log_probs, alive, t).masked_fill(over, PAD_ID)
        gained = log_probs.gather(-1, chosen[..., None])[..., 0].masked_fill(over, 0.0)
        ids[alive, :, t] = chosen
        scores[alive] += gained
        ended = (over | (chosen == EOS_ID)).all(-1)
        if ended.all():
            break
        if (stay := who_stays(ended)) is not None:
            alive, chosen = alive[stay], chosen[stay]
            constraint.select(stay)
            state = state.select(stay[:, None] * width + torch.arange(width, device=device))
        tokens = chosen.flatten()
    return [
        [_hypothesis(row, score, config) for row, score in zip(rows, row_scores, strict=True)]
        for rows, row_scores in zip(ids.tolist(), scores.tolist(), strict=True)
    ]


def _hypothesis(ids: list[int], log_prob: float, config: SearchConfig) -> Hypothesis:
    if not math.isfinite(log_prob):
        raise ValueError(NO_NUMBERS)
    end = ids.index(EOS_ID)
    return Hypothesis(ids[:end], log_prob / config.penalty(end + 1))
