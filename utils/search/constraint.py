"""Which tokens may come next, however likely they are: length limits, forced prefixes, no repeated n-grams."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from const.token import EOS_ID, PAD_ID
from utils.search.hypothesis import Bounds

NEVER = float("-inf")


class Constraint:
    """The rules for N sentences; the W rows of a sentence share them.

    Args:
        bounds: shortest and longest translation of each sentence.
        device: where the scores are.
        prefixes: tokens that each translation must begin with; a prefix longer than the bounds extends them.
        no_repeat_ngram: no row contains an n-gram of this many tokens twice; 0 allows all. A row with no token left
            to choose ends.
    """

    def __init__(
        self,
        bounds: Sequence[Bounds],
        device: torch.device,
        prefixes: Sequence[Sequence[int]] | None = None,
        no_repeat_ngram: int = 0,
    ) -> None:
        prefixes = [[] for _ in bounds] if prefixes is None else prefixes
        forced = [len(prefix) for prefix in prefixes]
        most = [max(bound.most, n + 1) for bound, n in zip(bounds, forced, strict=True)]
        self.longest = max(most)
        self._ngram = no_repeat_ngram
        # no row must end before the first, none is kept from ending from the second on, or forced from the third on
        self._first_end, self._last_least, self._last_forced = min(most), max(b.least for b in bounds), max(forced)
        self.most = torch.tensor(most, device=device)
        self._least = torch.tensor([bound.least for bound in bounds], device=device)
        self._forced = torch.tensor(forced, device=device)
        rows = [[*prefix, *[PAD_ID] * (max(forced) - len(prefix))] for prefix in prefixes]
        self._prefix = torch.tensor(rows, dtype=torch.long, device=device)

    def select(self, sentences: Int[Tensor, " N"]) -> None:
        """Keep these sentences."""
        self.most, self._least = self.most[sentences], self._least[sentences]
        self._forced, self._prefix = self._forced[sentences], self._prefix[sentences]

    def apply(self, log_probs: Float[Tensor, "N W V"], said: Int[Tensor, "N W t"]) -> None:
        """Rule out, in place, what may not follow the t tokens that each row has so far."""
        t = said.size(-1)
        end = log_probs[..., EOS_ID].clone()
        if t < self._last_forced:
            forced = (self._forced > t).nonzero()[:, 0]
            token = self._prefix[forced, t][:, None, None].expand(-1, said.size(1), 1)
            likely = log_probs[forced].gather(-1, token)
        if self._ngram and t >= self._ngram:
            self._forbid_repeats(log_probs, said)
        if t < self._last_least:
            log_probs[..., EOS_ID].masked_fill_((self._least > t)[:, None], NEVER)
        if self._ngram:
            stuck = log_probs.amax(-1) == NEVER
            log_probs[..., EOS_ID] = torch.where(stuck, end, log_probs[..., EOS_ID])
        if t < self._last_forced:
            log_probs[forced] = torch.full_like(log_probs[forced], NEVER).scatter(-1, token, likely)
        if t + 1 >= self._first_end:
            last = (self.most <= t + 1)[:, None]
            log_probs.masked_fill_(last[..., None], NEVER)
            log_probs[..., EOS_ID] = torch.where(last, end, log_probs[..., EOS_ID])

    def _forbid_repeats(self, log_probs: Tensor, said: Tensor) -> None:
        """Rule out every token that would complete an n-gram that the row already contains."""
        n, t = self._ngram, said.size(-1)
        seen = said.unfold(-1, n, 1)
        again = (seen[..., :-1] == said[..., None, t - n + 1 :]).all(-1)
        log_probs.scatter_(-1, torch.where(again, seen[..., -1], PAD_ID), NEVER)
