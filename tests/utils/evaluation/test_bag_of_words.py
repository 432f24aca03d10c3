"""Bags of words against the formulas, on a handful of texts."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from utils.dataset.labelled import LabelledText
from utils.dataset.token_array import TokenArray
from utils.evaluation.bag_of_words import (
    Bags,
    LinearClassifier,
    TfIdf,
    best_regression,
    logistic_regression,
    naive_bayes,
)

V = 9
TEXTS = [[5, 4, 5, 5], [], [8, 4], [6, 7, 6, 4], [5], [7, 7, 8]]
LABELS = [0, 1, 2, 1, 0, 2]


def bags(texts: list[list[int]] = TEXTS, labels: list[int] = LABELS, vocab: int = V) -> Bags:
    return Bags.of(LabelledText(TokenArray.of(texts, vocab), np.array(labels)), vocab)


def test_tokens_are_counted() -> None:
    expected = torch.tensor([[Counter(text)[token] for token in range(V)] for text in TEXTS]).float()
    torch.testing.assert_close(bags().tokens.to_dense(), expected)
    assert bags().labels.tolist() == LABELS


def test_tf_idf_is_the_formula_by_the_training_texts_rarities() -> None:
    others = [[4, 4, 8], [3], [], [5, 6, 7]]
    weighed = TfIdf(bags())(bags(others, [0] * 4)).tokens.to_dense()
    for text, row in zip(others, weighed.tolist(), strict=True):
        expected = [0.0] * V
        for token, n in Counter(text).items():
            n_texts = sum(token in trained for trained in TEXTS)
            expected[token] = (1 + math.log(n)) * (1 + math.log((1 + len(TEXTS)) / (1 + n_texts)))
        length = math.hypot(*expected)
        assert row == pytest.approx([value / (length or 1) for value in expected])


def test_naive_bayes_multiplies_smoothed_probabilities() -> None:
    found = naive_bayes(bags(), 3)
    asked = [[5, 4], [8, 8, 6], []]
    logits = found.logits(bags(asked, [0, 0, 0]))
    for text, row in zip(asked, logits.tolist(), strict=True):
        for label in range(3):
            seen = [token for trained, own in zip(TEXTS, LABELS, strict=True) for token in trained if own == label]
            expected = math.log(LABELS.count(label) / len(LABELS))
            expected += sum(math.log((seen.count(token) + 1) / (len(seen) + V)) for token in text)
            assert row[label] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("l2", [1.0, 0.01])
def test_the_regression_is_at_the_minimum(l2: float) -> None:
    """At the minimum, autograd's gradient of torch's cross-entropy is zero."""
    train = bags()
    weight, bias = (part.requires_grad_() for part in logistic_regression(train, 3, l2))
    loss = torch.nn.functional.cross_entropy(train.tokens.to_dense() @ weight + bias, train.labels)
    (loss + l2 / 2 * weight.square().sum()).backward()
    for part in (weight, bias):
        assert part.grad is not None
        assert part.grad.abs().max() < 5e-4
    assert weight.abs().max() > 0.05


def test_where_the_search_begins_is_left_as_it_was_and_the_end_is_the_same() -> None:
    begin = logistic_regression(bags(), 3, 1.0)
    before = LinearClassifier(*(part.clone() for part in begin))
    found, anew = logistic_regression(bags(), 3, 0.1, begin), logistic_regression(bags(), 3, 0.1)
    torch.testing.assert_close(begin, before)
    torch.testing.assert_close(found, anew, atol=2e-3, rtol=0)
    assert not torch.allclose(found.weight, begin.weight, atol=1e-2)


def noisy(n: int, seed: int) -> Bags:
    """Texts whose class mostly depends on one token, among uninformative tokens."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, n)
    shown = np.where(draw.random(n) < 0.7, labels, draw.integers(0, 3, n))
    texts = [[4 + int(token), *draw.integers(8, 99, 6).tolist()] for token in shown]
    return bags(texts, labels.tolist(), 99)


def test_the_penalty_that_tells_most_of_dev_is_taken() -> None:
    train, dev = noisy(60, 1), noisy(300, 2)
    tried: list[tuple[float, float]] = []
    best = best_regression(train, dev, 3, (100.0, 0.1, 1e-9), lambda trial: tried.append((trial.l2, trial.accuracy)))
    assert [l2 for l2, _ in tried] == [100.0, 0.1, 1e-9]
    assert best.l2 == 0.1
    assert best.accuracy == max(accuracy for _, accuracy in tried) == best.classifier.accuracy(dev)
    assert tried[1][1] > max(tried[0][1], tried[2][1])
    share = 100 * (best.classifier.logits(dev).argmax(1) == dev.labels).sum().item() / 300
    assert best.accuracy == pytest.approx(share)
    assert share > 60
