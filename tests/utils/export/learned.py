"""Networks trained briefly on a few sentences: their output is varied, confident, and ends."""

from functools import cache
from pathlib import Path

import torch
from torch.nn import functional as F

from const.token import PAD_ID
from models.transformer import Transformer, TransformerConfig
from tests.tiny import MODEL, TEXT, run, tokenizers
from utils.dataset.batch import padded
from utils.run import WEIGHTS
from utils.training.checkpoint import write_weights

_STEPS = 40


@cache
def learned(config: TransformerConfig = MODEL) -> Transformer:
    """Train on half of the sentences repeatedly; takes a second."""
    src = padded(tokenizers().src.encode(TEXT.src[::2]))
    tgt = padded(tokenizers().tgt.encode(TEXT.tgt[::2]), bos=True)
    torch.manual_seed(1)
    model = Transformer(config, len(tokenizers().src), len(tokenizers().tgt))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(_STEPS):
        logits = model(src, tgt[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD_ID)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def learned_run(root: Path, config: TransformerConfig = MODEL) -> Path:
    """The folder of a run with its weights."""
    folder = run(root, config)
    write_weights(learned(config).state_dict(), folder / WEIGHTS, 0.0)
    return folder
