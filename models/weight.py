"""Initialisation and tying of weights."""

import math
from typing import Any, cast

from torch import nn

from config.model import Initialisation
from layers.feed_forward import FeedForward
from layers.multi_head_attention import MultiHeadAttention


def initialise(module: nn.Module, initialisation: Initialisation = "unit_variance") -> None:
    """Initialise every weight of a network, so that none keeps whatever was in memory.

    Matrices are Xavier-uniform (Glorot & Bengio 2010), biases 0, norms 1 and 0. The row of padding of an embedding that
    has one starts at zero. What `initialisation` changes:

    - unit_variance: an embedding has standard deviation D^-½, so that after scaling by √D it has unit variance and,
      tied to the output, gives logits of unit variance too; query, key and value are slices of one (3D, D) matrix.
    - xavier_uniform: tables of embeddings and positions are treated as any other matrix, and query, key and value as a
      (D, D) matrix each.

    A layer that has a method `initialise()` has the last word on its weights. One that has parameters of its own, and
    is none of torch's, needs it.
    """
    alone = initialisation == "xavier_uniform"
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Embedding):
            if alone:
                nn.init.xavier_uniform_(part.weight)
            else:
                nn.init.normal_(part.weight, std=part.embedding_dim**-0.5)
            if part.padding_idx is not None:
                nn.init.zeros_(part.weight[part.padding_idx].detach())
        elif isinstance(part, nn.LayerNorm | nn.RMSNorm):
            part.reset_parameters()  # 1 and 0
    for part in module.modules():
        if isinstance(part, MultiHeadAttention):
            bound = math.sqrt(6 / ((2 if alone else 4) * part.query.in_features))
            for projection in (part.query, part.key_value):
                nn.init.uniform_(projection.weight, -bound, bound)
        elif isinstance(part, FeedForward) and part.n_wide > 1:  # a gate is a matrix by itself
            for matrix in part.widen.weight.detach().chunk(part.n_wide):
                nn.init.xavier_uniform_(matrix)
    _ask_layers(module)


def _ask_layers(module: nn.Module) -> None:
    """Have layers initialise themselves that can; refuse a parameter that nothing has initialised."""
    asked = [part for part in module.modules() if hasattr(part, "initialise")]
    set_by_themselves = {parameter for part in asked for parameter in part.parameters(recurse=False)}
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear | nn.Embedding | nn.LayerNorm) or type(part).__module__.startswith("torch.nn"):
            continue  # by a rule above, or by torch
        if own := [n for n, parameter in part.named_parameters(recurse=False) if parameter not in set_by_themselves]:
            where = f"{name}.{own[0]}".lstrip(".")
            raise ValueError(f"nothing initialises {where}: give {type(part).__name__} a method initialise() that does")
    for part in asked:
        cast(Any, part).initialise()


def initialise_truncated(module: nn.Module, std: float) -> None:
    """Initialise every weight of a network as BERT does (Devlin et al. 2019).

    Matrices and embeddings are normal, truncated at two standard deviations `std`; biases are 0, norms 1 and 0. The row
    of padding of an embedding that has one starts at zero.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            nn.init.zeros_(part.weight[part.padding_idx].detach())
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
        if isinstance(part, nn.Linear | nn.LayerNorm) and part.bias is not None:
            nn.init.zeros_(part.bias)
    _ask_layers(module)


def tie(owner: nn.Linear | nn.Embedding, *others: nn.Linear | nn.Embedding) -> None:
    """Make `others` share the weight of `owner` (Press & Wolf 2017), so that it is learned only once."""
    for other in others:
        if other.weight.shape != owner.weight.shape:
            raise ValueError(
                f"weights of shape {tuple(owner.weight.shape)} and {tuple(other.weight.shape)} cannot be tied: "
                "tying source and target needs one joint vocabulary"
            )
        other.weight = owner.weight
