"""The loss of a batch against cross-entropy by hand, and what must not change it."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from const.token import BOS_ID, EOS_ID, PAD_ID
from models.transformer import Transformer
from tests.tiny import MODEL, lively
from utils.dataset.batch import Batch, padded
from utils.training.loss import RDropObjective, TranslationObjective, build_objective

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


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.37, 1.0])
def test_it_is_the_cross_entropy_with_smoothed_labels(smoothing: float) -> None:
    net = network().train()  # without dropout
    nats, tokens, _ = TranslationObjective(smoothing)(net, batch(PAIRS))
    assert nats.item() == pytest.approx(by_hand(net, smoothing), rel=1e-5)
    assert tokens.item() == N_TOKENS


def test_a_network_in_eval_mode_has_a_plain_loss() -> None:
    net = network()
    nats, _, _ = TranslationObjective(0.3)(net, batch(PAIRS))
    assert nats.item() == pytest.approx(by_hand(net, 0.0), rel=1e-5)
    assert nats.item() != pytest.approx(by_hand(net, 0.3), rel=1e-3)


def test_padding_changes_neither_loss_nor_count_nor_gradient() -> None:
    src, tgt = batch(PAIRS)
    wide = Batch(F.pad(src, (0, 3), value=PAD_ID), F.pad(tgt, (0, 5), value=PAD_ID))
    outcomes: list[tuple[float, int, list[Tensor | None]]] = []
    for each in (Batch(src, tgt), wide):
        net = network().train()
        nats, tokens, _ = TranslationObjective(0.1)(net, each)
        nats.backward()
        outcomes.append((nats.item(), int(tokens), [parameter.grad for parameter in net.parameters()]))
    (nats_a, tokens_a, grads_a), (nats_b, tokens_b, grads_b) = outcomes
    assert nats_a == pytest.approx(nats_b, rel=1e-6)
    assert tokens_a == tokens_b == N_TOKENS
    for a, b in zip(grads_a, grads_b, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cut", [[1, 1, 1], [2, 1], [1, 2]])
def test_sums_over_any_batching_are_the_same(cut: list[int]) -> None:
    net, objective = network(), TranslationObjective()
    whole = objective(net, batch(PAIRS))
    rest, parts = PAIRS, []
    for size in cut:
        parts.append(objective(net, batch(rest[:size])))
        rest = rest[size:]
    assert sum(loss.nats.item() for loss in parts) == pytest.approx(whole[0].item(), rel=1e-6)
    assert sum(int(loss.tokens) for loss in parts) == int(whole[1])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_r_drop_without_dropout_is_the_plain_objective(smoothing: float) -> None:
    outcomes = []
    for objective in (TranslationObjective(smoothing), RDropObjective(smoothing, alpha=5.0)):
        net = network().train()
        nats, tokens, _ = objective(net, batch(PAIRS))
        nats.backward()
        outcomes.append((nats.detach(), int(tokens), [parameter.grad for parameter in net.parameters()]))
    torch.testing.assert_close(*outcomes, rtol=1e-4, atol=1e-4)
    assert outcomes[1][1] == N_TOKENS


def passes(net: Transformer) -> Iterator[Tensor]:
    """The logits of both passes over all pairs, as R-Drop draws them from a seed."""
    src, tgt = batch([*PAIRS, *PAIRS])
    torch.manual_seed(3)
    yield from net(src, tgt[:, :-1]).unflatten(0, (2, -1))


@pytest.mark.parametrize("alpha", [0.0, 1.0, 5.0])
def test_r_drop_is_half_of_the_papers_loss(alpha: float) -> None:
    """Liang et al. 2021, eq. 1 to 4, pair by pair and position by position, with what dropout left in each pass."""
    net = lively(replace(MODEL, dropout=0.3), VOCAB, VOCAB).train()
    expected = 0.0
    with torch.no_grad():
        first, second = (logits.double().softmax(-1) for logits in passes(net))
    for p_row, q_row, (_, tgt) in zip(first, second, PAIRS, strict=True):
        for p, q, right in zip(p_row, q_row, [*tgt, EOS_ID], strict=False):  # and padding behind it
            likelihood = -(p[right].log() + q[right].log())
            divergence = ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2
            expected += float(likelihood + alpha * divergence) / 2
    torch.manual_seed(3)
    nats, tokens, _ = RDropObjective(0.0, alpha)(net, batch(PAIRS))
    assert nats.item() == pytest.approx(expected, rel=1e-5)
    assert tokens.item() == N_TOKENS


def test_r_drop_in_eval_mode_is_plain() -> None:
    net, calls = network(), []
    net.src_embedding.register_forward_pre_hook(lambda _, inputs: calls.append(len(inputs[0])))
    nats, tokens, _ = RDropObjective(0.3, alpha=5.0)(net, batch(PAIRS))
    assert calls == [len(PAIRS)]  # a single pass
    assert nats.item() == pytest.approx(by_hand(net, 0.0), rel=1e-5)
    assert tokens.item() == N_TOKENS


def test_settings_say_which_objective() -> None:
    plain, r_drop = build_objective(0.2), build_objective(0.2, 5.0)
    assert isinstance(plain, TranslationObjective)
    assert isinstance(r_drop, RDropObjective)
    assert (plain.smoothing, r_drop.smoothing, r_drop.alpha) == (0.2, 0.2, 5.0)


@pytest.mark.parametrize(
    ("smoothing", "r_drop", "message"),
    [
        (-0.1, 0.0, "label_smoothing=-0.1: give at least 0 (none) and below 1, such as 0.1"),
        (1.0, 0.0, "label_smoothing=1.0: give at least 0 (none) and below 1, such as 0.1"),
        (0.1, -1.0, "r_drop=-1.0: give 0 (a single pass) or more, such as 5"),
        (0.1, math.nan, "r_drop=nan: give 0 (a single pass) or more, such as 5"),
        (0.1, math.inf, "r_drop=inf: give 0 (a single pass) or more, such as 5"),
    ],
)
def test_settings_that_make_no_objective_are_refused(smoothing: float, r_drop: float, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared)
        build_objective(smoothing, r_drop)
    assert str(caught.value) == message
