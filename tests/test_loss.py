"""Losses against torch's cross-entropy, the papers' formulas, and what must not change them."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from config.data import MaskingConfig
from const.token import BOS_ID, EOS_ID, PAD_ID
from models.bert import BertForPreTraining
from models.transformer import Transformer
from tests.test_resume import BERT, documents
from tests.test_resume import VOCAB as BERT_VOCAB
from tests.tiny import MODEL, assert_learned, lively, tokenizers
from utils.dataset.batch import Batch, BucketSampler, padded
from utils.dataset.masked import MaskedBatch, MaskedText, masked_examples
from utils.training import loss as module
from utils.training.loss import (
    TranslationObjective,
    masked_language_loss,
    projected_cross_entropy,
    require_true_gradients,
)

VOCAB = 13
PAIRS: list[tuple[list[int], list[int]]] = [
    ([4, 5, 6, 7], [8, 9]),
    ([10], [4, 5, 6, 7, 8, 11]),
    ([7, 7, 12], [9, 12, 4]),
]
N_TOKENS = sum(len(tgt) + 1 for _, tgt in PAIRS)  # </s> is learned too


def batch(pairs: list[tuple[list[int], list[int]]]) -> Batch:
    return Batch(padded([src for src, _ in pairs]), padded([tgt for _, tgt in pairs], bos=True))


def network() -> Transformer:
    return lively(MODEL, VOCAB, VOCAB)


def by_hand(net: Transformer, smoothing: float) -> float:
    """Pair by pair, position by position, from probabilities in float64."""
    nats = 0.0
    for src, tgt in PAIRS:
        logits = net(torch.tensor([[*src, EOS_ID]]), torch.tensor([[BOS_ID, *tgt]]))[0].double()
        for row, right in zip(logits, [*tgt, EOS_ID], strict=True):
            p = (row.exp() / row.exp().sum()).tolist()
            q = [smoothing / VOCAB + (1 - smoothing) * (token == right) for token in range(VOCAB)]
            nats -= sum(share * math.log(probability) for share, probability in zip(q, p, strict=True))
    return nats


@pytest.mark.parametrize("smoothing", [0.0, 0.37, 1.0])
def test_it_is_the_cross_entropy_with_labels_smoothed_in_training_alone(smoothing: float) -> None:
    for training, kept, r_drop in ((True, smoothing, 0.0), (False, 0.0, 5.0)):
        net = network().train(training)  # without dropout
        nats, tokens, nll, _ = TranslationObjective(smoothing, r_drop)(net, batch(PAIRS))
        assert nats.item() == pytest.approx(by_hand(net, kept), rel=1e-5)
        assert nll.item() == pytest.approx(by_hand(net, 0.0), rel=1e-5)
        assert nll.equal(nats) == (kept == 0)
        assert tokens.item() == N_TOKENS


def test_padding_changes_neither_loss_nor_count_nor_gradient() -> None:
    src, tgt = batch(PAIRS)
    wide = Batch(F.pad(src, (0, 3), value=PAD_ID), F.pad(tgt, (0, 5), value=PAD_ID))
    outcomes: list[tuple[float, int, list[Tensor | None]]] = []
    for pairs in (Batch(src, tgt), wide):
        net = network().train()
        nats, tokens, *_ = TranslationObjective(0.1)(net, pairs)
        nats.backward()
        outcomes.append((nats.item(), int(tokens), [parameter.grad for parameter in net.parameters()]))
    (nats_a, tokens_a, grads_a), (nats_b, tokens_b, grads_b) = outcomes
    assert nats_a == pytest.approx(nats_b, rel=1e-6)
    assert tokens_a == tokens_b == N_TOKENS
    for a, b in zip(grads_a, grads_b, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def passes(net: Transformer) -> Iterator[Tensor]:
    """The logits of both passes over all pairs, as R-Drop draws them from a seed."""
    src, tgt = batch([*PAIRS, *PAIRS])
    torch.manual_seed(3)
    yield from net(src, tgt[:, :-1]).unflatten(0, (2, -1))


@pytest.mark.parametrize("alpha", [1.0, 5.0])
def test_r_drop_is_half_of_the_papers_loss(alpha: float) -> None:
    """Liang et al. 2021, eq. 1 to 4, pair by pair and position by position, with what dropout left in each pass."""
    net = lively(replace(MODEL, dropout=0.3), VOCAB, VOCAB).train()
    expected = expected_nll = 0.0
    with torch.no_grad():
        first, second = (logits.double().softmax(-1) for logits in passes(net))
    for p_row, q_row, (_, tgt) in zip(first, second, PAIRS, strict=True):
        for p, q, right in zip(p_row, q_row, [*tgt, EOS_ID], strict=False):  # and padding behind it
            likelihood = -(p[right].log() + q[right].log())
            divergence = ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2
            expected += float(likelihood + alpha * divergence) / 2
            expected_nll += float(likelihood) / 2
    torch.manual_seed(3)
    nats, tokens, nll, _ = TranslationObjective(0.0, alpha)(net, batch(PAIRS))
    assert nats.item() == pytest.approx(expected, rel=1e-5)
    assert nll.item() == pytest.approx(expected_nll, rel=1e-5)
    assert tokens.item() == N_TOKENS


# the projection in slices


def example(passes: int, with_bias: bool = True, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor]:
    """Hidden states of 13 positions, twice for R-Drop; a weight of 11 tokens, and its bias."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(passes, 13, 8), (11, 8), *([(11,)] if with_bias else [])]
    inputs = [torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True) for shape in shapes]
    return inputs, torch.randint(11, (13,), generator=generator)


def whole(inputs: list[Tensor], target: Tensor, smoothing: float, alpha: float) -> Tensor:
    """All logits at once, by torch."""
    logits = F.linear(*inputs)
    targets = target.expand(len(logits), -1).flatten()
    nats = F.cross_entropy(logits.flatten(0, 1), targets, reduction="sum", label_smoothing=smoothing) / len(logits)
    if len(logits) == 2:
        log_p, log_q = logits.log_softmax(-1)
        there = F.kl_div(log_q, log_p, reduction="sum", log_target=True)  # torch's KL(p‖q) takes q first
        nats = nats + alpha / 4 * (there + F.kl_div(log_p, log_q, reduction="sum", log_target=True))
    return nats


def sliced(inputs: list[Tensor], target: Tensor, smoothing: float, alpha: float) -> tuple[Tensor, Tensor]:
    hidden, weight, *bias = inputs
    return projected_cross_entropy(hidden, weight, bias[0] if bias else None, target, smoothing, alpha)


PASSES = pytest.mark.parametrize("passes", [1, 2])


# a position at a time; three and a rest, in pieces of two and one; all at once
@pytest.mark.parametrize(("in_slice", "in_piece"), [(1, 1), (66, 44), (2**23, 2**23)])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("smoothing", "alpha"), [(0.1, 5.0), (1.0, 0.0)])
@PASSES
def test_value_and_gradients_are_those_of_the_whole(
    passes: int,
    smoothing: float,
    alpha: float,
    with_bias: bool,
    in_slice: int,
    in_piece: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(module._SLICE, "cpu", in_slice)
    monkeypatch.setitem(module._PIECE, "cpu", in_piece)
    inputs, target = example(passes, with_bias)
    nats, nll = sliced(inputs, target, smoothing, alpha)
    torch.testing.assert_close(nll, whole(inputs, target, 0.0, 0.0), check_stride=False)
    assert not nll.requires_grad
    ours, theirs = 3 * nats, 3 * whole(inputs, target, smoothing, alpha)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs))


@PASSES
def test_bf16_keeps_the_sums_in_single_precision(passes: int) -> None:
    inputs, target = example(passes, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours, nll = sliced(inputs, target, 0.1, 5.0)
    theirs = whole(inputs, target, 0.1, 5.0)
    assert ours.dtype == nll.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=0)
    for low, high in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True):
        assert low.dtype == torch.float32
        assert (low - high).norm() < 0.03 * high.norm()


def test_a_certain_network_has_a_finite_loss() -> None:
    hidden, weight = torch.tensor([[1000.0, 0], [1000.0, 0]]), torch.eye(2) * 1000
    nats, _ = projected_cross_entropy(hidden[None], weight, None, torch.tensor([0, 1]))
    assert nats.item() == pytest.approx(1e6)  # nothing for the first, the whole distance for the second
    passes = torch.tensor([[[1000.0, 0]], [[0, 1000.0]]], requires_grad=True)
    nats, _ = projected_cross_entropy(passes, torch.eye(2), None, torch.tensor([0]), 0.0, 2.0)
    assert nats.item() == pytest.approx(1000 / 2 + 2 / 4 * 2 * 1000)
    (gradient,) = torch.autograd.grad(nats, passes)
    assert gradient.isfinite().all()


def test_a_position_that_does_not_count_is_as_if_it_were_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._PIECE, "cpu", 44)
    inputs, target = example(1)
    hidden, weight, bias = inputs
    counted = torch.arange(13) % 3 != 0
    ours, our_nll = projected_cross_entropy(hidden, weight, bias, target, 0.1, counted=counted)
    theirs, their_nll = projected_cross_entropy(hidden[:, counted], weight, bias, target[counted], 0.1)
    torch.testing.assert_close((ours, our_nll), (theirs, their_nll))
    torch.testing.assert_close(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs))


# BERT


def bert() -> BertForPreTraining:
    torch.manual_seed(4)
    return BertForPreTraining(replace(BERT, dropout=0.0, attention_dropout=0.0), BERT_VOCAB + 1)


def masked(next_sentence: bool = True) -> MaskedBatch:
    text = MaskedText(documents(), tokenizers().src, MaskingConfig(next_sentence=next_sentence))
    return BucketSampler(text, 200, examples=masked_examples).epoch(0)[0]


@pytest.mark.parametrize(("training", "next_sentence"), [(True, True), (True, False), (False, True)])
def test_it_is_the_cross_entropy_of_what_is_hidden_and_of_what_follows(training: bool, next_sentence: bool) -> None:
    net, batch = bert().train(training), masked(next_sentence)
    tokens, follows = net(batch.ids, batch.segments)
    nll = F.cross_entropy(tokens.flatten(0, 1), batch.target.flatten(), ignore_index=PAD_ID, reduction="sum")
    expected = nll
    if training and next_sentence:
        n_masked = (batch.target != PAD_ID).sum(1)
        expected = expected + (F.cross_entropy(follows, batch.follows, reduction="none") * n_masked).sum()
    loss = masked_language_loss(net, batch)
    assert loss.tokens == batch.target_tokens
    torch.testing.assert_close(loss.nats, expected)
    torch.testing.assert_close(loss.nll, nll.detach())
    if training and next_sentence:
        loss.nats.backward()
        assert_learned(net)


@pytest.mark.parametrize("term", ["smoothing", "divergence"])
def test_a_loss_whose_gradient_is_not_that_of_its_value_is_refused(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_true_gradients()
    own = module._cross_entropy

    def edited(logits: Tensor, target: Tensor, smoothing: float, alpha: float, with_gradient: bool) -> Any:
        nats, nll, gradient = own(logits, target, smoothing, alpha, with_gradient)
        changed = nats + 0.01 * (logits**2).sum((0, 2)) * (term == "smoothing" or len(logits) == 2)
        return changed, nll, gradient

    monkeypatch.setattr(module, "_cross_entropy", edited)
    with pytest.raises(ValueError, match="is not that of its value: change both alike"):
        require_true_gradients()
