"""BERTs of Hugging Face as oracles, so small that they are made in a blink."""

from typing import Any, TypeVar

import torch
from transformers import BertConfig, PreTrainedModel

from tests.tiny import drawn

VOCAB = 23

ModelT = TypeVar("ModelT", bound=PreTrainedModel)


def config(**changes: Any) -> BertConfig:
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "max_position_embeddings": 12,
        "attn_implementation": "eager",
    }
    return BertConfig(**(settings | changes))


def lively(kind: type[ModelT], settings: BertConfig, seed: int = 0) -> ModelT:
    """In float64 and with every weight drawn, so that a forgotten bias or two weights in each other's place show."""
    torch.manual_seed(seed)
    model = drawn(kind(settings).double(), 0.4)
    model.train(False)
    return model
