"""Classes of texts told by which tokens are in them, in whatever order: what a network that reads must beat."""

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from utils.dataset.labelled import LabelledText

_MOST_ITERATIONS = 50  # of L-BFGS: behind them the accuracy moves by hundredths
_HISTORY = 10  # steps that L-BFGS remembers


class Bags(NamedTuple):
    """Of each text how much of each token it has, and its class."""

    tokens: Float[Tensor, "N V"]  # sparse, by rows
    labels: Int[Tensor, " N"]

    @classmethod
    def of(cls, text: LabelledText, vocab: int) -> "Bags":
        """How often each token stands in each text.

        Args:
            text: ids and labels.
            vocab: number of tokens.
        """
        n = len(text.lines)
        ids, lengths = text.lines.gather(np.arange(n))
        places, counts = np.unique(np.repeat(np.arange(n), lengths) * vocab + ids, return_counts=True)
        row, token = np.divmod(places, vocab)
        parts = (np.append(0, np.bincount(row, minlength=n).cumsum()), token, counts.astype(np.float32))
        bounds, column, values = map(torch.from_numpy, parts)
        return cls(_sparse(bounds, column, values, (n, vocab)), torch.from_numpy(text.labels))


def _sparse(bounds: Tensor, column: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A matrix by its rows; torch warns at the first one that such may change."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(bounds, column, values, shape, check_invariants=True)


class TfIdf:
    """(1 + log count) · (1 + log (1 + N) / (1 + texts with the token)), each text of length 1 (Salton & Buckley 1988).

    Args:
        counts: of the training text, which says how rare a token is.
    """

    def __init__(self, counts: Bags) -> None:
        n, vocab = counts.tokens.shape
        texts = counts.tokens.col_indices().bincount(minlength=vocab)
        self._rarity = 1 + ((1 + n) / (1 + texts)).log()

    def __call__(self, counts: Bags) -> Bags:
        """Weighed tokens of the same texts."""
        tokens, (n, vocab) = counts.tokens, counts.tokens.shape
        bounds, column = tokens.crow_indices(), tokens.col_indices()
        values = (1 + tokens.values().log()) * self._rarity[column]
        row = torch.arange(n).repeat_interleave(bounds.diff())
        length = torch.zeros(n).index_add_(0, row, values.square()).sqrt()
        return Bags(_sparse(bounds, column, values / length[row], (n, vocab)), counts.labels)


class LinearClassifier(NamedTuple):
    """Logits of the classes: a weight of each token for each of them, and a bias."""

    weight: Float[Tensor, "V C"]
    bias: Float[Tensor, " C"]

    def logits(self, bags: Bags) -> Float[Tensor, "N C"]:
        """Of each text."""
        return bags.tokens @ self.weight + self.bias

    def accuracy(self, bags: Bags) -> float:
        """How many classes it tells, in percent."""
        return 100 * (self.logits(bags).argmax(1) == bags.labels).float().mean().item()


def naive_bayes(counts: Bags, n_classes: int) -> LinearClassifier:
    """p(class) Π p(token | class) by the training text's counts, one added to each (McCallum & Nigam 1998)."""
    of_class = torch.nn.functional.one_hot(counts.labels, n_classes).float()
    seen = _transposed(counts.tokens) @ of_class + 1
    return LinearClassifier((seen / seen.sum(0)).log(), of_class.mean(0).log())


def logistic_regression(
    bags: Bags, n_classes: int, l2: float, begin: LinearClassifier | None = None
) -> LinearClassifier:
    """The weights W and biases that minimise the mean cross-entropy of the classes + l2 / 2 · ‖W‖².

    Args:
        bags: of the training text.
        n_classes: number of classes.
        l2: how much large weights cost.
        begin: where to look first; that of another l2 saves time, the minimum is the same.
    """
    n, vocab = bags.tokens.shape
    transposed = _transposed(bags.tokens)
    of_class = torch.nn.functional.one_hot(bags.labels, n_classes).float()
    found = begin or LinearClassifier(torch.zeros(vocab, n_classes), torch.zeros(n_classes))
    weight, bias = found = LinearClassifier(*(part.clone() for part in found))
    search = torch.optim.LBFGS(
        [weight, bias], max_iter=_MOST_ITERATIONS, history_size=_HISTORY, line_search_fn="strong_wolfe"
    )

    # by hand, for autograd would turn the matrix over each time
    def loss() -> Tensor:
        log_probs = found.logits(bags).log_softmax(1)
        slope = (log_probs.exp() - of_class) / n
        weight.grad, bias.grad = transposed @ slope + l2 * weight, slope.sum(0)
        return -(log_probs * of_class).sum() / n + l2 / 2 * weight.square().sum()

    search.step(loss)
    return found


def _transposed(tokens: Tensor) -> Tensor:
    return tokens.t().to_sparse_csr()


class Trial(NamedTuple):
    """What a strength of the penalty gave."""

    l2: float
    accuracy: float  # on dev, percent
    classifier: LinearClassifier


def best_regression(
    train: Bags,
    dev: Bags,
    n_classes: int,
    strengths: Sequence[float],
    on_trial: Callable[[Trial], object] = lambda _: None,
) -> Trial:
    """The logistic regression that tells most classes of the dev text.

    Args:
        train: what to learn from.
        dev: what to choose by.
        n_classes: number of classes.
        strengths: of the penalty, to be tried; each search begins where the one before ended.
        on_trial: is told of each as it comes.
    """
    trials: list[Trial] = []
    for l2 in strengths:
        found = logistic_regression(train, n_classes, l2, trials[-1].classifier if trials else None)
        trials.append(Trial(l2, found.accuracy(dev), found))
        on_trial(trials[-1])
    return max(trials, key=lambda trial: trial.accuracy)
