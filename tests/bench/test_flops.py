"""Operations counted by hand equal those that torch counts while computing."""

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from bench.measure import training_flops
from config.model import TransformerConfig
from models.transformer import Transformer
from utils.dataset.batch import Batch
from utils.training.loss import TranslationObjective

CONFIG = TransformerConfig(
    d_model=16, n_heads=2, d_ff=24, n_encoder_layers=2, n_decoder_layers=1, dropout=0.1, attention_dropout=0.1
)
VOCAB, ROWS, SRC, TGT = 13, 3, 5, 7


def by_hand() -> int:
    lengths = (np.full(ROWS, length, np.int64) for length in (SRC, TGT))
    return int(training_flops(CONFIG, VOCAB, *lengths).sum())


def test_it_is_what_torch_counts_where_nothing_is_padding() -> None:
    model = Transformer(CONFIG, VOCAB, VOCAB).eval()  # a network that trains sums biases by products, too
    src, tgt = torch.randint(4, VOCAB, (ROWS, SRC)), torch.randint(4, VOCAB, (ROWS, TGT + 1))
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten()).backward()
    assert counter.get_total_flops() == by_hand()


def test_training_needs_no_more_than_that() -> None:
    model = Transformer(CONFIG, VOCAB, VOCAB)
    src, tgt = torch.randint(4, VOCAB, (ROWS, SRC)), torch.randint(4, VOCAB, (ROWS, TGT + 1))
    with FlopCounterMode(display=False) as counter:
        TranslationObjective(0.1)(model, Batch(src, tgt))[0].backward()
    assert counter.get_total_flops() <= 1.01 * by_hand()


def test_a_pair_costs_what_it_is_long_not_what_its_batch_is() -> None:
    src, tgt = np.array([5, 3]), np.array([7, 2])
    alone = [int(training_flops(CONFIG, VOCAB, src[i : i + 1], tgt[i : i + 1]).sum()) for i in (0, 1)]
    assert training_flops(CONFIG, VOCAB, src, tgt).tolist() == alone
    assert alone[1] < alone[0]
