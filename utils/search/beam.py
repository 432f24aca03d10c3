"""Beam search: the W best prefixes of each sentence, one token longer at each step (Sutskever et al. 2014)."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from config.search import Hypothesis, SearchConfig
from const.token import BOS_ID, EOS_ID, PAD_ID
from utils.dataset.batch import padded
from utils.search.constraint import NEVER, NO_NUMBERS, Constraint, Searchable, StateT, next_log_probs
from utils.search.glossary import Progress, Wanted
from utils.search.searcher import Request

_CHUNK = 64
_FEW = 2**14  # numbers; for fewer, topk is faster than any detour


class BeamStep(NamedTuple):
    """A step of a beam search for N sentences, in log-probabilities: what it chose among, and what it chose."""

    continued: Float[Tensor, "N R V"]  # of each row so far with each token behind it; -inf: with </s>, or not allowed
    ends: Float[Tensor, "N R"]  # of each row so far with </s> behind it
    ended: Float[Tensor, "N R"]  # scores of those that were likely enough to be kept as translations; -inf: of others
    kept: Float[Tensor, "N W"]  # of the W best prefixes; -inf: there are fewer
    rows: Int[Tensor, "N W"]  # which row each of these continues
    tokens: Int[Tensor, "N W"]  # with which token
    hope: Float[Tensor, " N"]  # the best score that any of them may still reach


@torch.inference_mode()
def beam_search(
    model: Searchable[StateT],
    requests: Sequence[Request],
    config: SearchConfig,
    device: torch.device | str = "cpu",
    n_best: int | None = None,
    on_step: Callable[[BeamStep], object] | None = None,
) -> list[list[Hypothesis]]:
    """Return up to W hypotheses for each of N requests, in order, best first.

    A prefix ends where </s> is at least as likely as the W-th best of all other continuations. A sentence is done when
    no prefix can still overtake its best finished translations: a log-probability only falls, so a prefix never
    scores above its present log-probability divided by the largest penalty that it may still meet.

    Args:
        model: in eval mode, on this device.
        requests: all with wanted terms, or none; a translation that reaches its limit may lack the fewest possible.
        config: beam size, penalties, and what may not be repeated.
        n_best: how many must be the best that this beam can find; the fewer, the sooner it is done. None: all W.
        on_step: called with what each step chose among; its tensors change in the next step.
    """
    wanted = [request.wanted for request in requests if request.wanted is not None]
    banks = _Banks(wanted, config.beam_size) if wanted else None
    width = config.beam_size if banks is None else banks.width
    n_wanted = width if n_best is None else min(n_best, width)
    constraint = Constraint(requests, device, config.no_repeat_ngram)
    penalties = torch.tensor([config.penalty(length) for length in range(1, constraint.longest + 1)], device=device)
    last_penalty = penalties[constraint.max_length - 1]
    n = len(requests)
    hypotheses: list[list[Hypothesis]] = [[] for _ in requests]
    alive, over = torch.arange(n, device=device), torch.zeros(n, dtype=torch.bool, device=device)
    finished = _Finished(n, width, constraint.longest, device)
    state = model.start(padded([request.source for request in requests]).to(device))
    tokens = torch.full((n,), BOS_ID, device=device)
    ids = torch.full((n, 1, constraint.longest), PAD_ID, device=device)
    scores = torch.zeros(n, 1, device=device)
    for t in range(constraint.longest):
        logits, state = model.step(tokens, state)
        n, n_rows = scores.shape  # one row per sentence at the first step, W afterwards
        total = next_log_probs(logits).view(n, n_rows, -1)
        constraint.apply(total, ids[..., :t])
        total += scores[..., None]
        ends = total[..., EOS_ID].clone()
        total[..., EOS_ID] = NEVER
        if banks is None:
            scores, places = largest(total.flatten(1), min(width, total[0].numel()))
        else:
            must_end = (constraint.max_length <= t + 1) & (finished.scores[:, 0] == NEVER)
            scores, places, ends = banks.choose(total, ends, must_end)
        if missing := width - scores.size(1):  # fillers that can never win
            scores, places = pad(scores, (0, missing), value=NEVER), pad(places, (0, missing))
        rows, chosen = places // total.size(-1), places % total.size(-1)

        ended = ends.masked_fill(ends < scores[:, -1:], NEVER)
        if (ended > NEVER).any():
            ended /= penalties[t]
            ids[..., t] = EOS_ID
            finished.add(ended, ids)
        ids = ids.gather(1, rows[..., None].expand(-1, -1, ids.size(-1)))
        ids[..., t] = chosen

        # over the lengths to come, the penalty is largest at one end or the other
        hope = scores[:, 0] / torch.maximum(penalties[min(t + 1, len(penalties) - 1)], last_penalty)
        if on_step is not None:
            on_step(BeamStep(total, ends, ended, scores, rows, chosen, hope))
        done = ~over & ((finished.scores[:, n_wanted - 1] >= hope) | (constraint.max_length <= t + 1))
        rows = rows + torch.arange(n, device=device)[:, None] * n_rows
        if done.any():
            newly = done.nonzero()[:, 0]
            for sentence, best_first in zip(alive[newly].tolist(), finished.hypotheses(newly), strict=True):
                hypotheses[sentence] = best_first
            over = over | done
            if over.all():
                break
            if (stay := drop_finished(over)) is not None:
                alive, over, scores, ids = alive[stay], over[stay], scores[stay], ids[stay]
                rows, chosen, last_penalty = rows[stay], chosen[stay], last_penalty[stay]
                constraint.select(stay)
                finished.select(stay)
                if banks is not None:
                    banks.select(stay)
        state = state.select(rows)
        tokens = chosen.flatten()
    if not all(hypotheses):
        raise ValueError(NO_NUMBERS)
    return hypotheses


class _Finished:
    """The W best finished translations of each of N sentences, best first; places not yet taken score -inf."""

    def __init__(self, n: int, width: int, longest: int, device: torch.device | str) -> None:
        self.scores = torch.full((n, width), NEVER, device=device)
        self.ids = torch.full((n, width, longest), PAD_ID, device=device)

    def add(self, scores: Float[Tensor, "N R"], ids: Int[Tensor, "N R L"]) -> None:
        """Keep the best of these and of those already held."""
        width = self.scores.size(1)
        self.scores, places = torch.cat([self.scores, scores], 1).topk(width)
        both = torch.cat([self.ids, ids], 1)
        self.ids = both.gather(1, places[..., None].expand(-1, -1, both.size(-1)))

    def select(self, sentences: Int[Tensor, " N"]) -> None:
        """Keep these sentences."""
        self.scores, self.ids = self.scores[sentences], self.ids[sentences]

    def hypotheses(self, sentences: Int[Tensor, " N"]) -> list[list[Hypothesis]]:
        """Return the finished hypotheses of some sentences, best first."""
        ids, scores = self.ids[sentences].tolist(), self.scores[sentences].tolist()
        return [
            [Hypothesis(row[: row.index(EOS_ID)], score) for row, score in zip(*sentence, strict=True) if score > NEVER]
            for sentence in zip(ids, scores, strict=True)
        ]


class _Banks:
    """The beams of N sentences whose translations must have some terms.

    A row only competes with those that lack as many tokens of terms, its bank (Hokamp & Liu 2017). The banks share one
    beam (Post & Vilar 2018), which has a row for each token of the terms besides the usual ones.
    """

    def __init__(self, wanted: Sequence[Wanted], beam_size: int) -> None:
        self._beam_size, self.width = beam_size, beam_size + max(terms.n_tokens for terms in wanted)
        # of each row its last token, and how far it has come
        self._beams = [(terms, [(BOS_ID, terms.start)]) for terms in wanted]

    def select(self, sentences: Int[Tensor, " N"]) -> None:
        """Keep these sentences."""
        self._beams = [self._beams[i] for i in sentences.tolist()]

    def choose(
        self, total: Float[Tensor, "N R V"], ends: Float[Tensor, "N R"], must_end: Bool[Tensor, " N"]
    ) -> tuple[Float[Tensor, "N W"], Int[Tensor, "N W"], Float[Tensor, "N R"]]:
        """Return the scores of the rows to keep, best first, their places as of `largest`, and which may end.

        A row goes on with its likeliest tokens or, however unlikely, with one of a term. It does not end before it has
        all terms or must; and not if it is less likely than all that is kept of those that have all.
        """
        vocab, chosen, may_end = total.size(-1), [], ends.tolist()
        for i, (wanted, rows) in enumerate(self._beams):
            likeliest = largest(total[i], min(self._beam_size, vocab))[1]
            of_terms = torch.tensor(wanted.tokens, dtype=torch.long, device=total.device)
            tokens = torch.cat([likeliest, of_terms.expand(len(likeliest), -1)], -1)
            log_probs = total[i].gather(-1, tokens).tolist()
            banks = defaultdict[int, list[tuple[float, int, Progress]]](list)
            for row, (last, progress) in enumerate(rows):
                for token, log_prob in {*zip(tokens[row].tolist(), log_probs[row], strict=True)}:
                    if log_prob > NEVER:
                        then = wanted.after(progress, last, token)
                        banks[wanted.left(then)].append((log_prob, row * vocab + token, then))
            # the best of each bank, then the second best of each, and so on
            in_turn = chain(*zip_longest(*(sorted(banks[left], reverse=True) for left in sorted(banks))))
            size = self._beam_size + wanted.n_tokens
            kept = sorted([*filter(None, in_turn)][:size], reverse=True)
            complete = [score for score, _, then in kept if not wanted.left(then)]
            min_score = min(complete) if complete and len(kept) == size else NEVER
            lacking = [sum(wanted.missing(wanted.after(progress, last, EOS_ID))) for last, progress in rows]
            max_lacking = min(lacking) if must_end[i] else 0
            for row, n_lacking in enumerate(lacking):
                if n_lacking > max_lacking or may_end[i][row] < min_score:
                    may_end[i][row] = NEVER
            self._beams[i] = wanted, [(place % vocab, then) for _, place, then in kept]
            chosen.append(kept + [(NEVER, 0, wanted.start)] * (self.width - len(kept)))
        scores, places = (torch.tensor([[row[k] for row in kept] for kept in chosen]) for k in (0, 1))
        return scores.to(ends), places.to(ends.device), torch.tensor(may_end).to(ends)


def largest(values: Float[Tensor, "N C"], k: int) -> tuple[Float[Tensor, "N k"], Int[Tensor, "N k"]]:
    """Return the k largest values of each row and their places, largest first, as `values.topk(k)` does.

    torch's topk sorts its way through all of them, which on a CPU takes as long as the layers of a small decoder.
    The k largest are in the k chunks with the largest maxima, and maxima are found quickly.
    """
    if k == 1:
        return values.max(1, keepdim=True)
    width = values.size(1)
    whole = width // _CHUNK * _CHUNK
    if values.device.type != "cpu" or values.numel() < _FEW or whole // _CHUNK <= 2 * k:
        return values.topk(k)
    chunks = values[:, :whole].unflatten(1, (-1, _CHUNK))
    places = chunks.amax(-1).topk(k).indices
    candidates = chunks.gather(1, places[..., None].expand(-1, -1, _CHUNK)).flatten(1)
    best, within = candidates.topk(k)
    places = places.gather(1, within // _CHUNK) * _CHUNK + within % _CHUNK
    if whole == width:
        return best, places
    # the last, incomplete chunk is merged in afterwards
    rest, rest_places = values[:, whole:].topk(min(k, width - whole))
    best, order = torch.cat([best, rest], 1).topk(k)
    return best, torch.cat([places, rest_places + whole], 1).gather(1, order)


def drop_finished(over: Bool[Tensor, " N"]) -> Int[Tensor, " M"] | None:
    """Return the sentences of a batch to keep, in their order; None: all of them.

    A CPU's kernels are compiled for each batch height that they meet, which takes as long as a step. So a batch
    shrinks through a few fixed heights, and some finished sentences stay in it until it can shrink to the next.
    """
    n_alive = int((~over).sum())
    height = batch_height(n_alive)
    if height >= len(over):
        return None
    return over.int().argsort(stable=True)[:height].sort().values


def batch_height(n: int) -> int:
    """Return the next of a few heights, at least n: 1 to 8, 10, 12, 14, 16, 20, ..., each at most a quarter larger."""
    step = 2 ** max(0, n.bit_length() - 3)
    return -(-n // step) * step
