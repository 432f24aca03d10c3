"""Bag-of-words text classification, regardless of token order: the baseline for networks that read texts."""

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from utils.dataset.labelled import LabelledText

_MOST_ITERATIONS = 50  # iterations of L-BFGS: after them the accuracy changes by hundredths
_HISTORY = 10  # steps that L-BFGS remembers


class Bags(NamedTuple):
    """The amount of each token in each text, and the class of each text."""

    tokens: Float[Tensor, "N V"]  # sparse, by rows
    labels: Int[Tensor, " N"]

    @classmethod
    def of(cls, text: LabelledText, vocab: int) -> "Bags":
        """Count how often each token occurs in each text.

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
    """Return a sparse matrix by rows, without torch's warning that the format is in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(bounds, column, values, shape, check_invariants=True)


class TfIdf:
    """(1 + log count) · (1 + log (1 + N) / (1 + texts with the token)), each text of length 1 (Salton & Buckley 1988).

    Args:
        counts: token counts of the training set, from which the rarity of tokens is computed.
    """

    def __init__(self, counts: Bags) -> None:
        n, vocab = counts.tokens.shape
        texts = counts.tokens.col_indices().bincount(minlength=vocab)
        self._rarity = 1 + ((1 + n) / (1 + texts)).log()

    def __call__(self, counts: Bags) -> Bags:
        """Return the weighted tokens of the same texts."""
        tokens, (n, vocab) = counts.tokens, counts.tokens.shape
        bounds, column = tokens.crow_indices(), tokens.col_indices()
        values = (1 + tokens.values().log()) * self._rarity[column]
        row = torch.arange(n).repeat_interleave(bounds.diff())
        length = torch.zeros(n).index_add_(0, row, values.square()).sqrt()
        return Bags(_sparse(bounds, column, values / length[row], (n, vocab)), counts.labels)


class LinearClassifier(NamedTuple):
    """A linear classifier: a weight of each token for each class, and a bias."""

    weight: Float[Tensor, "V C"]
    bias: Float[Tensor, " C"]

    def logits(self, bags: Bags) -> Float[Tensor, "N C"]:
        """Return the logits of the classes for each text."""
        return bags.tokens @ self.weight + self.bias

    def accuracy(self, bags: Bags) -> float:
        """Return the accuracy, in percent."""
        return 100 * (self.logits(bags).argmax(1) == bags.labels).float().mean().item()


def naive_bayes(counts: Bags, n_classes: int) -> LinearClassifier:
    """p(class) Π p(token | class) from the training set's counts, with add-one smoothing (McCallum & Nigam 1998)."""
    of_class = torch.nn.functional.one_hot(counts.labels, n_classes).float()
    seen = _transposed(counts.tokens) @ of_class + 1
    return LinearClassifier((seen / seen.sum(0)).log(), of_class.mean(0).log())


def logistic_regression(
    bags: Bags, n_classes: int, l2: float, begin: LinearClassifier | None = None
) -> LinearClassifier:
    """Find the weights W and biases that minimise the mean cross-entropy of the classes + l2 / 2 · ‖W‖².

    Args:
        bags: weighted tokens of the training set.
        n_classes: number of classes.
        l2: strength of the penalty on large weights.
        begin: starting point; the result for another l2 saves time, and the minimum is the same.
    """
    n, vocab = bags.tokens.shape
    transposed = _transposed(bags.tokens)
    of_class = torch.nn.functional.one_hot(bags.labels, n_classes).float()
    found = begin or LinearClassifier(torch.zeros(vocab, n_classes), torch.zeros(n_classes))
    weight, bias = found = LinearClassifier(*(part.clone() for part in found))
    search = torch.optim.LBFGS(
        [weight, bias], max_iter=_MOST_ITERATIONS, history_size=_HISTORY, line_search_fn="strong_wolfe"
    )

    # gradient by hand, because autograd would transpose the matrix each time
    def loss() -> Tensor:
        log_probs = found.logits(bags).log_softmax(1)
        logits_grad = (log_probs.exp() - of_class) / n
        weight.grad, bias.grad = transposed @ logits_grad + l2 * weight, logits_grad.sum(0)
        return -(log_probs * of_class).sum() / n + l2 / 2 * weight.square().sum()

    search.step(loss)
    return found


def _transposed(tokens: Tensor) -> Tensor:
    return tokens.t().to_sparse_csr()


class Trial(NamedTuple):
    """The result of one penalty strength."""

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
    """Return the logistic regression with the highest accuracy on the dev set.

    Args:
        train: training set.
        dev: dev set, to choose the strength.
        n_classes: number of classes.
        strengths: penalty strengths to try; each search starts from the result of the one before.
        on_trial: called with each trial when it is done.
    """
    trials: list[Trial] = []
    for l2 in strengths:
        found = logistic_regression(train, n_classes, l2, trials[-1].classifier if trials else None)
        trials.append(Trial(l2, found.accuracy(dev), found))
        on_trial(trials[-1])
    return max(trials, key=lambda trial: trial.accuracy)
