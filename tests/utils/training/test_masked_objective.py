from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from const.token import PAD_ID
from models.bert import BertForPreTraining
from tests.tiny import tokenizers
from tests.utils.task.test_training import BERT, VOCAB, documents
from utils.dataset.masked import MaskedBatch, MaskedSampler, MaskingConfig
from utils.training.loss import MaskedLanguageObjective


def network() -> BertForPreTraining:
    torch.manual_seed(4)
    return BertForPreTraining(replace(BERT, dropout=0.0, attention_dropout=0.0), VOCAB + 1)


def batch(next_sentence: bool = True) -> MaskedBatch:
    return MaskedSampler(documents(), tokenizers().src, MaskingConfig(next_sentence=next_sentence), 200).epoch(0)[0]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("next_sentence", [True, False])
def test_it_is_the_cross_entropy_of_what_is_hidden_and_of_what_follows(training: bool, next_sentence: bool) -> None:
    net, one = network().train(training), batch(next_sentence)
    tokens, follows = net(one.ids, one.segments)
    expected = F.cross_entropy(tokens.flatten(0, 1), one.target.flatten(), ignore_index=PAD_ID, reduction="sum")
    if training and next_sentence:
        n_hidden = (one.target != PAD_ID).sum(1)
        expected = expected + (F.cross_entropy(follows, one.follows, reduction="none") * n_hidden).sum()
    loss = MaskedLanguageObjective()(net, one)
    assert loss.tokens == one.target_tokens
    torch.testing.assert_close(loss.nats, expected)


def test_the_gradient_reaches_every_parameter() -> None:
    net = network()
    MaskedLanguageObjective()(net.train(), batch()).nats.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
