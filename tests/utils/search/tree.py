"""A model whose every probability is known: what to say next is drawn anew for each source and each beginning."""

import math
import random
from itertools import product

import torch
from torch import Tensor

from const.token import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from utils.search.hypothesis import Hypothesis, length_penalty

Ids = tuple[int, ...]


class TreeState:
    def __init__(self, sources: tuple[Ids, ...], said: tuple[Ids, ...]) -> None:
        self.sources = sources
        self.said = said

    def select(self, rows: Tensor) -> "TreeState":
        owners = rows // (len(self.said) // len(self.sources))
        assert (owners == owners[:, :1]).all(), "rows of another sentence"
        assert owners[:, 0].tolist() == sorted(set(owners[:, 0].tolist())), "sentences out of order"
        sources = tuple(self.sources[i] for i in owners[:, 0].tolist())
        return TreeState(sources, tuple(self.said[i] for i in rows.flatten().tolist()))


class Tree:
    """Searchable.

    Args:
        vocab: number of tokens.
        seed: of the probabilities.
        eos: added to the logit of </s>.
        forbidden: added to the logits of <pad>, <unk> and <s>.
    """

    def __init__(self, vocab: int, seed: int = 0, eos: float = 0.0, forbidden: float = 0.0) -> None:
        self.vocab, self.seed, self.eos, self.forbidden = vocab, seed, eos, forbidden
        self.starts: list[int] = []  # sentences of each call
        self.steps: list[list[int]] = []  # tokens of each call

    def logits(self, source: Ids, said: Ids) -> list[float]:
        draw = random.Random(repr((self.seed, source, said)))
        logits = [2 * draw.gauss() for _ in range(self.vocab)]
        logits[EOS_ID] += self.eos
        for token in (PAD_ID, UNK_ID, BOS_ID):
            logits[token] += self.forbidden
        return logits

    def start(self, src: Tensor) -> TreeState:
        self.starts.append(len(src))
        sources = tuple(tuple(i for i in row if i != PAD_ID) for row in src.tolist())
        return TreeState(sources, ((),) * len(sources))

    def step(self, tokens: Tensor, state: TreeState) -> tuple[Tensor, TreeState]:
        self.steps.append(tokens.tolist())
        said = tuple((*ids, token) for ids, token in zip(state.said, tokens.tolist(), strict=True))
        width = len(said) // len(state.sources)
        logits = [self.logits(state.sources[row // width], ids) for row, ids in enumerate(said)]
        return torch.tensor(logits), TreeState(state.sources, said)

    def log_probs(self, source: Ids, said: Ids) -> dict[int, float]:
        """What may be said next, with its log-probability among all tokens, forbidden ones too."""
        logits = self.logits(source, (BOS_ID, *said))
        log_z = math.log(sum(math.exp(x) for x in logits))
        return {token: logits[token] - log_z for token in range(self.vocab) if token not in (PAD_ID, UNK_ID, BOS_ID)}

    def all_translations(self, source: Ids, limit: int, alpha: float) -> list[Hypothesis]:
        """Every sequence that ends in time, best first."""
        found = []
        for length in range(limit):
            for ids in product(range(4, self.vocab), repeat=length):
                steps = zip(range(length + 1), (*ids, EOS_ID), strict=True)
                total = sum(self.log_probs(source, ids[:t])[token] for t, token in steps)
                found.append(Hypothesis(list(ids), total / length_penalty(length + 1, alpha)))
        return sorted(found, key=lambda hypothesis: -hypothesis.score)

    def patient_beam(self, source: Ids, limit: int, alpha: float, width: int) -> list[Hypothesis]:
        """Beam search of one sentence that never stops before the limit."""
        beams: list[tuple[Ids, float]] = [((), 0.0)]
        finished = []
        for length in range(1, limit + 1):
            candidates = [
                ((*ids, token), total + log_prob)
                for ids, total in beams
                for token, log_prob in self.log_probs(source, ids).items()
            ]
            beams = []
            for ids, total in sorted(candidates, key=lambda candidate: -candidate[1]):
                if ids[-1] == EOS_ID:
                    finished.append(Hypothesis(list(ids[:-1]), total / length_penalty(length, alpha)))
                else:
                    beams.append((ids, total))
                if len(beams) == width:
                    break
        if not finished:
            finished = [Hypothesis(list(ids), total / length_penalty(limit, alpha)) for ids, total in beams]
        return sorted(finished, key=lambda hypothesis: -hypothesis.score)[:width]
