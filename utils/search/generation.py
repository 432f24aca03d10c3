"""Text generation: a language model continues a prompt, one token at a time."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from const.token import EOS_ID
from models.transformer_xl import TransformerXL
from utils.search.hypothesis import next_log_probs
from utils.search.sampling import SamplingConfig, candidates, inverse_cdf, uniform

_TEXT = 1  # the number of the only text; `sample` has one for each source


@torch.inference_mode()
def generate(
    model: TransformerXL,
    prompt: Sequence[int],
    most: int,
    sentences: int = 1,
    sampling: SamplingConfig | None = None,
    memory_length: int | None = None,
) -> list[list[int]]:
    """Continue a prompt, which is read once for all continuations.

    Args:
        model: in eval mode.
        prompt: token ids, preceded by <s> where a document begins.
        most: most tokens of a continuation.
        sentences: a continuation ends after this many </s>.
        sampling: how many continuations, and how they are drawn; None: one, by greedy search.
        memory_length: positions that are remembered; None: as many as in training.

    Returns:
        The tokens of each continuation, every </s> included; one that does not end with </s> reached `most`.

    Raises:
        ValueError: the prompt is empty, or `sentences` is less than 1.
    """
    if not prompt:
        raise ValueError("the prompt is empty: begin it with <s>")
    if sentences < 1:
        raise ValueError(f"sentences={sentences}: give at least 1")
    device = next(model.parameters()).device
    n = 1 if sampling is None else sampling.n_samples
    draws = None if sampling is None else uniform(sampling, [_TEXT], most)[0].to(device)
    said: list[list[int]] = [[] for _ in range(n)]
    hidden, memory = model(torch.tensor([prompt], device=device), model.start(1, device), memory_length=memory_length)
    logits = model.project(hidden[:, -1]).expand(n, -1)
    alive, memory = list(range(n)), memory.select(torch.zeros(n, dtype=torch.long, device=device))
    for t in range(most):
        log_probs = next_log_probs(logits)
        if sampling is None or draws is None:
            tokens = log_probs.argmax(-1)
        else:
            tokens = _drawn(log_probs, sampling, draws[alive, t])
        for row, token in zip(alive, tokens.tolist(), strict=True):
            said[row].append(token)
        stay = [place for place, row in enumerate(alive) if said[row].count(EOS_ID) < sentences]
        if not stay or t + 1 == most:
            break
        if len(stay) < len(alive):
            alive, rows = [alive[place] for place in stay], torch.tensor(stay, device=device)
            tokens, memory = tokens[rows], memory.select(rows)
        logits, memory = model.step(tokens, memory, memory_length)
    return said


def _drawn(log_probs: Float[Tensor, "R V"], sampling: SamplingConfig, draws: Float[Tensor, " R"]) -> Int[Tensor, " R"]:
    """Return the tokens that the uniform numbers select."""
    likely, tokens = candidates(log_probs, sampling)
    return tokens.gather(-1, inverse_cdf(likely.softmax(-1), draws)[:, None])[:, 0]
