"""Decoding one token at a time without looking back: greedy search, and sampling by probability."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from config.search import Hypothesis, SamplingConfig, SearchConfig
from const.token import BOS_ID, EOS_ID, PAD_ID
from utils.dataset.batch import padded
from utils.dataset.masked import uniform
from utils.search.beam import drop_finished, largest
from utils.search.constraint import NEVER, NO_NUMBERS, Constraint, Searchable, StateT, next_log_probs
from utils.search.searcher import Request

# log-probabilities (N, W, V), the numbers of these sentences (N,), and the number of tokens so far -> tokens (N, W)
Choice = Callable[[Tensor, Tensor, int], Tensor]


@torch.inference_mode()
def decode(
    model: Searchable[StateT],
    requests: Sequence[Request],
    config: SearchConfig,
    device: torch.device | str,
    choose: Choice,
    width: int = 1,
) -> list[list[Hypothesis]]:
    """Translate N sources, each `width` times; a sentence whose rows have all ended leaves the batch.

    Arguments as for `beam_search`; the length penalty only affects the score, and `choose` picks the next tokens among
    those that are allowed.
    """
    n, constraint = len(requests), Constraint(requests, device, config.no_repeat_ngram)
    ids = torch.full((n, width, constraint.longest), PAD_ID, device=device)
    scores, over = torch.zeros(n, width, device=device), torch.zeros(n, width, dtype=torch.bool, device=device)
    all_ids, all_scores = ids.clone(), torch.full_like(scores, torch.nan)  # as rows leave; NaN: one never ended
    alive = torch.arange(n, device=device)
    src = padded([request.source for request in requests]).to(device)
    state = model.start(src).select(alive[:, None].expand(-1, width))
    tokens = torch.full((n * width,), BOS_ID, device=device)
    for t in range(constraint.longest):
        logits, state = model.step(tokens, state)
        log_probs = next_log_probs(logits).unflatten(0, (-1, width))
        constraint.apply(log_probs, ids[..., :t])
        # a row that has ended waits for its siblings
        chosen = choose(log_probs, alive, t).masked_fill(over, PAD_ID)
        scores += log_probs.gather(-1, chosen[..., None])[..., 0].masked_fill(over, 0.0)
        ids[..., t] = chosen
        over = over | (chosen == EOS_ID)
        if (stay := drop_finished(over.all(-1))) is not None:
            all_ids[alive], all_scores[alive] = ids, scores
            if not len(stay):
                break
            alive, ids, scores, over, chosen = (part[stay] for part in (alive, ids, scores, over, chosen))
            constraint.select(stay)
            state = state.select(stay[:, None] * width + torch.arange(width, device=device))
        tokens = chosen.flatten()
    if not all_scores.isfinite().all():
        raise ValueError(NO_NUMBERS)
    return [
        [
            Hypothesis(row[: (end := row.index(EOS_ID))], score / config.penalty(end + 1))
            for row, score in zip(*of_request, strict=True)
        ]
        for of_request in zip(all_ids.tolist(), all_scores.tolist(), strict=True)
    ]


def greedy_search(
    model: Searchable[StateT], requests: Sequence[Request], config: SearchConfig, device: torch.device | str = "cpu"
) -> list[Hypothesis]:
    """Translate N sources by the likeliest next token at every step; arguments as for `decode`."""

    def likeliest(log_probs: Float[Tensor, "N 1 V"], _sentences: Tensor, _t: int) -> Int[Tensor, "N 1"]:
        return largest(log_probs[:, 0], 1)[1]

    return [best for (best,) in decode(model, requests, config, device, likeliest)]


_FIRST_TRY = 64  # tokens, which usually hold most of the probability


def sample(
    model: Searchable[StateT],
    requests: Sequence[Request],
    config: SearchConfig,
    sampling: SamplingConfig,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """Draw translations of N sources, best score first; arguments as for `beam_search`.

    Each draw depends only on the seed, the number of its source, the number of the sample and the step. Scores are by
    the model's own probabilities, whatever the temperature.
    """
    numbers, n_steps = [request.number for request in requests], max(request.max_length for request in requests)
    draws = uniform_draws(sampling, numbers, n_steps).to(device)

    def drawn(log_probs: Float[Tensor, "N W V"], sentences: Tensor, t: int) -> Int[Tensor, "N W"]:
        likely, tokens = candidates(log_probs.flatten(0, 1), sampling)
        places = inverse_cdf(likely.softmax(-1), draws[sentences, :, t].flatten())
        return tokens.gather(-1, places[:, None]).view(log_probs.shape[:-1])

    drawn_for_each = decode(model, requests, config, device, drawn, sampling.n_samples)
    return [sorted(samples, key=lambda hypothesis: -hypothesis.score) for samples in drawn_for_each]


def candidates(
    log_probs: Float[Tensor, "R V"], sampling: SamplingConfig
) -> tuple[Float[Tensor, "R C"], Int[Tensor, "R C"]]:
    """Return what is drawn among: log-probabilities (up to a constant) at the temperature, and their tokens."""
    scores = log_probs / sampling.temperature
    tokens = torch.arange(scores.size(1), device=scores.device).expand_as(scores)
    if 0 < sampling.top_k < scores.size(1):
        scores, tokens = largest(scores, sampling.top_k)
    if sampling.top_p < 1:
        scores, places = _nucleus(scores, sampling.top_p)
        tokens = tokens.gather(-1, places)
    return scores, tokens


def inverse_cdf(probs: Float[Tensor, "R C"], draws: Float[Tensor, " R"]) -> Int[Tensor, " R"]:
    """Return the first place in each row where the cumulative probability exceeds a uniform number from [0, 1)."""
    # in double precision; and a cumulative sum computed in parallel may shrink by a rounding error, so it must not
    # count at places with probability 0
    sums = probs.cumsum(-1, dtype=torch.float64).masked_fill_(probs == 0, 0.0)
    return (sums > (draws * sums.amax(-1))[:, None]).int().argmax(-1)


def uniform_draws(sampling: SamplingConfig, numbers: Sequence[int], n_steps: int) -> Float[Tensor, "N W T"]:
    """Return a number from [0, 1) for each step of each sample, independent of what else is drawn."""
    sentences, samples, steps = np.ogrid[: len(numbers), : sampling.n_samples, :n_steps]
    key = sampling.seed, "sample"
    return torch.from_numpy(uniform(key, np.asarray(numbers)[sentences], samples, steps))


def _nucleus(scores: Float[Tensor, "R V"], top_p: float) -> tuple[Float[Tensor, "R C"], Int[Tensor, "R C"]]:
    """Return the likeliest tokens, up to and including the one that brings their sum to top_p; the rest score -inf."""
    log_probs = scores.log_softmax(-1)
    n_all, n = scores.size(1), min(_FIRST_TRY, scores.size(1))
    while True:
        likely, places = largest(log_probs, n)
        probs = likely.double().exp()
        sums = probs.cumsum(-1)
        if n == n_all or bool((sums[:, -1] >= top_p).all()):
            return likely.masked_fill(sums - probs >= top_p, NEVER), places
        n = min(4 * n, n_all)
