"""Accuracy of networks with known answers, counted by hand."""

from collections.abc import Sequence
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from const.token import BOS_ID, EOS_ID, PAD_ID
from models.bert import BertClassifier, BertForPreTraining
from tests.tiny import tokenizers
from utils.dataset.labelled import LabelledBatch
from utils.dataset.masked import MaskedBatch
from utils.evaluation.judge import ClassAccuracy, MaskedAccuracy

JAPANESE = tokenizers().src
MASK = len(JAPANESE)  # the first id after the vocabulary


class SaysWhere(nn.Module):
    """Predicts 10 + t for the masked token at position t, and that a pair follows if its second id is odd."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def bert(self, ids: Tensor, segments: Tensor) -> Tensor:  # noqa: ARG002
        x = F.one_hot(10 + torch.arange(ids.size(1)).expand_as(ids), 99).float()
        x[:, 0, 0] = (ids[:, 1] % 2).float()
        return x

    def head(self, x: Tensor) -> Tensor:
        return x

    def pooler(self, x: Tensor) -> Tensor:
        return x[:, 0, 0]

    def next_sentence(self, odd: Tensor) -> Tensor:
        return torch.stack([1 - odd, odd], dim=-1)


def masked(ids: list[list[int]], target: list[list[int]], follows: Sequence[int] = ()) -> MaskedBatch:
    rows = torch.tensor(ids)
    return MaskedBatch(rows, torch.zeros_like(rows), torch.tensor(target), torch.tensor(follows))


def accuracy(*batches: MaskedBatch, n_samples: int = 3) -> MaskedAccuracy:
    return MaskedAccuracy(cast(BertForPreTraining, SaysWhere()), batches, JAPANESE, n_samples)


FIRST = masked(
    [[BOS_ID, 15, MASK, MASK, EOS_ID], [BOS_ID, 16, MASK, EOS_ID, PAD_ID]],
    [[PAD_ID, PAD_ID, 12, 19, PAD_ID], [PAD_ID, PAD_ID, 12, PAD_ID, PAD_ID]],  # 12 is right, 19 is not
    [1, 1],  # 15 is odd: right; 16 is even: wrong
)
SECOND = masked([[BOS_ID, 17, MASK, 18, EOS_ID]], [[PAD_ID, PAD_ID, 20, 13, PAD_ID]], [1])  # 20 is wrong, 13 is right


def test_hidden_tokens_and_next_sentences_are_counted_over_all_batches() -> None:
    found = accuracy(FIRST, SECOND)(2.5)
    assert found.loss == 2.5
    assert found.scores == {"accuracy": pytest.approx(100 * 3 / 5), "next_sentence": pytest.approx(100 * 2 / 3)}


def test_without_pairs_no_next_sentence_is_scored() -> None:
    assert accuracy(FIRST._replace(follows=torch.tensor([])))(0.0).scores == {"accuracy": pytest.approx(100 * 2 / 3)}


def test_a_sample_shows_what_was_read_written_and_filled_in() -> None:
    first, second = accuracy(FIRST, SECOND)(0.0).samples
    shown = [" ".join(JAPANESE.tokens([i])[0] for i in ids) for ids in ([BOS_ID, 15, 12, 19, EOS_ID], [12, 13])]
    assert first.reference == shown[0]
    assert first.source == " ".join([*shown[0].split()[:2], "[MASK]", "[MASK]", shown[0].split()[-1]])
    assert first.translation == " ".join([*shown[0].split()[:2], *shown[1].split(), shown[0].split()[-1]])
    assert second.source.split()[2] == "[MASK]"
    assert len(accuracy(FIRST, SECOND, n_samples=1)(0.0).samples) == 1


class SaysSecond(nn.Module):
    """Predicts the class given by the second id of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, ids: Tensor) -> Tensor:
        return F.one_hot(ids[:, 1], 9).float()


def test_classes_are_counted_over_all_batches() -> None:
    batches = [
        LabelledBatch(torch.tensor([[BOS_ID, label] for label in read]), torch.tensor(written))
        for read, written in (([5, 6, 7], [5, 6, 8]), ([5], [4]))
    ]
    found = ClassAccuracy(cast(BertClassifier, SaysSecond()), batches)(1.5)
    assert (found.loss, found.scores) == (1.5, {"accuracy": 50.0})


def test_long_rows_are_no_samples() -> None:
    long = masked([[BOS_ID, 17, MASK, *[18] * 38]], [[PAD_ID, PAD_ID, 12, *[PAD_ID] * 38]])
    found = accuracy(long, SECOND._replace(follows=torch.tensor([])))(0.0)
    assert found.scores == {"accuracy": pytest.approx(100 * 2 / 3)}
    assert len(found.samples) == 1
