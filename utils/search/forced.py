"""Forced decoding: the log-probabilities of given translations, and of the alternatives at each position."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from const.token import BOS_ID
from models.transformer import Transformer
from utils.dataset.batch import padded, within_budget
from utils.search.constraint import NEVER
from utils.search.hypothesis import Searchable, StateT, next_log_probs

_POSITIONS_AT_ONCE = 256


@torch.inference_mode()
def token_log_probs(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    tokens_per_batch: int = 4096,
) -> list[list[float]]:
    """Return the log-probability of each token of given translations, the final </s> included.

    Args:
        model: a model in eval mode, packed or not.
        sources: source ids, without </s>.
        targets: target ids, without <s> and </s>.
        tokens_per_batch: most positions of a batch on either side, padding included; a longer pair is its own batch.
    """
    device = next(model.parameters()).device
    found: list[list[float]] = [[] for _ in sources]
    longer = [max(len(src), len(tgt)) + 1 for src, tgt in zip(sources, targets, strict=True)]
    lengths = [len(tgt) + 1 for tgt in targets]
    for rows in within_budget(longer, tokens_per_batch):
        src = padded([sources[i] for i in rows]).to(device)
        tgt = padded([targets[i] for i in rows], bos=True).to(device)
        x = model.hidden(src, tgt[:, :-1])
        said = tgt[:, 1:]
        real = torch.arange(said.size(1), device=device) < torch.tensor([[lengths[i]] for i in rows], device=device)
        log_probs = iter(_log_probs(model, x[real], said[real]).tolist())
        for i in rows:
            found[i] = [next(log_probs) for _ in range(lengths[i])]
    return found


@torch.inference_mode()
def alternatives(
    model: Searchable[StateT], src: Sequence[int], said: Sequence[int], k: int, device: torch.device
) -> list[list[tuple[int, float]]]:
    """Return the k likeliest tokens, with log-probabilities, at each position of a translation and after its end.

    Args:
        model: in eval mode.
        src: source ids, without </s>.
        said: target ids of the translation, without <s>.
        k: tokens per position, likeliest first; fewer where the vocabulary is smaller.
        device: where the model is.
    """
    found = []
    state = model.start(padded([src]).to(device))
    for token in (BOS_ID, *said):
        logits, state = model.step(torch.tensor([token], device=device), state)
        log_probs = next_log_probs(logits)[0]
        likely, tokens = log_probs.topk(min(k, len(log_probs)))
        pairs = zip(tokens.tolist(), likely.tolist(), strict=True)
        found.append([(token, log_prob) for token, log_prob in pairs if log_prob > NEVER])
    return found


def _log_probs(model: Transformer, x: Float[Tensor, "P D"], said: Int[Tensor, " P"]) -> Float[Tensor, " P"]:
    """Return the log-probability of each position's token, never holding the logits of all positions at once."""
    parts = zip(x.split(_POSITIONS_AT_ONCE), said[:, None].split(_POSITIONS_AT_ONCE), strict=True)
    return torch.cat([model.project(x).float().log_softmax(-1).gather(-1, said)[:, 0] for x, said in parts])
