"""The likeliest next token, again and again."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from const.token import EOS_ID
from utils.search.hypothesis import (
    Hypothesis,
    Searchable,
    SearchConfig,
    StateT,
    bos_rows,
    length_penalty,
    next_log_probs,
)


@torch.inference_mode()
def greedy_search(
    model: Searchable[StateT], src: Int[Tensor, "N S"], limits: Sequence[int], config: SearchConfig
) -> list[Hypothesis]:
    """Translate N sources; a finished sentence leaves the batch.

    Args:
        model: in eval mode.
        src: source ids, </s> behind each, then padding.
        limits: most tokens of each translation, </s> included.
        config: the length penalty (which only shows in the score).

    Returns:
        One hypothesis a source, in order.
    """
    ids: list[list[int]] = [[] for _ in limits]
    scores = [0.0] * len(limits)
    alive = list(range(len(limits)))
    state = model.start(src)
    tokens = bos_rows(len(alive), src.device)
    while alive:
        logits, state = model.step(tokens, state)
        best, tokens = next_log_probs(logits).max(-1)
        stay = []
        for row, (log_prob, token) in enumerate(zip(best.tolist(), tokens.tolist(), strict=True)):
            sentence = alive[row]
            scores[sentence] += log_prob
            ids[sentence].append(token)
            if token != EOS_ID and len(ids[sentence]) < limits[sentence]:
                stay.append(row)
        if len(stay) < len(alive):
            alive = [alive[row] for row in stay]
            if alive:
                rows = torch.tensor(stay, device=src.device)
                tokens, state = tokens[rows], state.select(rows[:, None])
    return [
        Hypothesis([i for i in found if i != EOS_ID], score / length_penalty(len(found), config.length_penalty))
        for found, score in zip(ids, scores, strict=True)
    ]
