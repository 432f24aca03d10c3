"""How likely a model finds what others say: given translations, and the ways to go on from a beginning."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from const.token import BOS_ID, PAD_ID
from layers.mask import padding_mask
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
    """The log-probability of each token of given translations, </s> behind them included.

    Args:
        model: in eval mode, perhaps packed.
        sources: source ids, without </s>.
        targets: target ids, without <s> and </s>.
        tokens_per_batch: most positions of a batch on either side, padding included; a longer pair is one by itself.
    """
    device = next(model.parameters()).device
    found: list[list[float]] = [[] for _ in sources]
    longer = [max(len(src), len(tgt)) + 1 for src, tgt in zip(sources, targets, strict=True)]
    lengths = [len(tgt) + 1 for tgt in targets]
    for rows in within_budget(longer, tokens_per_batch):
        src = padded([sources[i] for i in rows]).to(device)
        tgt = padded([targets[i] for i in rows], bos=True).to(device)
        x = model.decode(tgt[:, :-1], model.encode(src), padding_mask(src, PAD_ID))
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
    """The k likeliest tokens before each of those that were said and behind the last, with their log-probabilities.

    Args:
        model: in eval mode.
        src: source ids, without </s>.
        said: target ids, without <s>.
        k: how many, likeliest first; fewer where the vocabulary is smaller.
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
    """Of the one token that was said at each position; the logits of all positions are never there at once."""
    parts = zip(x.split(_POSITIONS_AT_ONCE), said[:, None].split(_POSITIONS_AT_ONCE), strict=True)
    return torch.cat([model.project(x).float().log_softmax(-1).gather(-1, said)[:, 0] for x, said in parts])
