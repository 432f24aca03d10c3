"""What search is made of: what can be searched (ensembles, too), and which tokens may come next."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from const.token import EOS_ID, PAD_ID
from utils.search.searcher import Request


class State(Protocol):
    """The state of decoding: an immutable value."""

    def select(self, rows: Int[Tensor, "N W"]) -> Self:
        """Keep these W rows of each sentence that stays."""


StateT = TypeVar("StateT", bound=State)


class Searchable(Protocol[StateT]):
    """A model that can be searched."""

    def start(self, src: Int[Tensor, "N S"]) -> StateT:
        """Encode the sources."""

    def step(self, tokens: Int[Tensor, " R"], state: StateT) -> tuple[Float[Tensor, "R V"], StateT]:
        """Append a token to each row; return the logits of the next one and the new state."""


class Interruptible:
    """A searchable model that calls a function before each step: an exception of that ends the search."""

    def __init__(self, model: Searchable[Any], before_step: Callable[[], object]) -> None:
        self._model, self._before_step = model, before_step

    def start(self, src: Int[Tensor, "N S"]) -> Any:
        """Encode the sources."""
        self._before_step()
        return self._model.start(src)

    def step(self, tokens: Int[Tensor, " R"], state: Any) -> tuple[Float[Tensor, "R V"], Any]:
        """Append a token to each row."""
        self._before_step()
        return self._model.step(tokens, state)


class EnsembleState(NamedTuple):
    """The decoding state of each model."""

    parts: tuple[Any, ...]

    def select(self, rows: Int[Tensor, "N W"]) -> "EnsembleState":
        """Keep these rows in all of them."""
        return EnsembleState(tuple(part.select(rows) for part in self.parts))


class Ensemble:
    """A searchable model: the mean of the probabilities of models that share one vocabulary."""

    def __init__(self, models: Sequence[Searchable[Any]]) -> None:
        self.models = models

    def start(self, src: Int[Tensor, "N S"]) -> EnsembleState:
        """Encode the sources with each model."""
        return EnsembleState(tuple(model.start(src) for model in self.models))

    def step(self, tokens: Int[Tensor, " R"], state: EnsembleState) -> tuple[Float[Tensor, "R V"], EnsembleState]:
        """Append a token to each row, for every model; return log Σ p: the log of the mean, up to a constant."""
        steps = [model.step(tokens, part) for model, part in zip(self.models, state.parts, strict=True)]
        log_probs = torch.stack([logits.float().log_softmax(-1) for logits, _ in steps])
        # search normalises what it is given, which takes care of 1 / M
        return log_probs.logsumexp(0), EnsembleState(tuple(part for _, part in steps))


NEVER = float("-inf")
NO_NUMBERS = (
    "the network's probabilities are not finite numbers: use precision fp32, or train again with a lower peak_lr"
)


def next_log_probs(logits: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Return log-probabilities of the next token in single precision; tokens that no translation has are ruled out."""
    log_probs = logits.float().log_softmax(-1)
    log_probs[:, :EOS_ID] = NEVER  # <pad>, <unk> and <s> come first
    return log_probs


class Constraint:
    """Length limits, forced prefixes and no repeated n-grams of N sentences; the W rows of a sentence share them.

    A prefix longer than the bounds extends them. A row with no token left to choose ends.
    """

    def __init__(self, requests: Sequence[Request], device: torch.device | str, no_repeat_ngram: int) -> None:
        forced = [len(request.prefix) for request in requests]
        min_lengths = [request.bounds.min_length for request in requests]
        max_lengths = [request.max_length for request in requests]
        self.longest = max(max_lengths)
        self._ngram = no_repeat_ngram
        # lengths in tokens, by which `apply` leaves out what no row needs yet, or no longer
        self._first_end = min(max_lengths)  # before this length, no row has to end
        self._last_min_length = max(min_lengths)  # from this length on, every row may end
        self._last_forced = max(forced)  # from this length on, no prefix forces a token
        self.max_length = torch.tensor(max_lengths, device=device)
        self._min_length = torch.tensor(min_lengths, device=device)
        self._forced = torch.tensor(forced, device=device)
        rows = [[*request.prefix, *[PAD_ID] * (max(forced) - len(request.prefix))] for request in requests]
        self._prefix = torch.tensor(rows, dtype=torch.long, device=device)

    def select(self, sentences: Int[Tensor, " N"]) -> None:
        """Keep these sentences."""
        self.max_length, self._min_length = self.max_length[sentences], self._min_length[sentences]
        self._forced, self._prefix = self._forced[sentences], self._prefix[sentences]

    def apply(self, log_probs: Float[Tensor, "N W V"], so_far: Int[Tensor, "N W t"]) -> None:
        """Rule out, in place, what may not follow the t tokens that each row has so far."""
        t = so_far.size(-1)
        end = log_probs[..., EOS_ID].clone()
        if t < self._last_forced:
            forced = (self._forced > t).nonzero()[:, 0]
            token = self._prefix[forced, t][:, None, None].expand(-1, so_far.size(1), 1)
            likely = log_probs[forced].gather(-1, token)
        if self._ngram and t >= self._ngram:
            self._forbid_repeats(log_probs, so_far)
        if t < self._last_min_length:
            log_probs[..., EOS_ID].masked_fill_((self._min_length > t)[:, None], NEVER)
        if self._ngram:
            stuck = log_probs.amax(-1) == NEVER
            log_probs[..., EOS_ID] = torch.where(stuck, end, log_probs[..., EOS_ID])
        if t < self._last_forced:
            log_probs[forced] = torch.full_like(log_probs[forced], NEVER).scatter(-1, token, likely)
        if t + 1 >= self._first_end:
            last = (self.max_length <= t + 1)[:, None]
            log_probs.masked_fill_(last[..., None], NEVER)
            log_probs[..., EOS_ID] = torch.where(last, end, log_probs[..., EOS_ID])

    def _forbid_repeats(self, log_probs: Tensor, so_far: Tensor) -> None:
        """Rule out every token that would complete an n-gram that the row already contains."""
        n, t = self._ngram, so_far.size(-1)
        seen = so_far.unfold(-1, n, 1)
        again = (seen[..., :-1] == so_far[..., None, t - n + 1 :]).all(-1)
        log_probs.scatter_(-1, torch.where(again, seen[..., -1], PAD_ID), NEVER)
