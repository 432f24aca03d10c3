"""How weights begin, and which of them are one."""

import math

from torch import nn

from layers.multi_head_attention import MultiHeadAttention


def initialise(module: nn.Module, pad_id: int | None = None) -> None:
    """Set every weight of a network, so that none is left as it happened to lie in memory.

    Matrices are Xavier-uniform (Glorot & Bengio 2010), biases 0, norms 1 and 0. An embedding has standard
    deviation D^-½, so that it leaves the scaling by √D with unit variance and, tied to the output, gives
    logits of unit variance too.

    Args:
        module: the network.
        pad_id: the row of every token embedding that starts at zero.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=part.embedding_dim**-0.5)
            if pad_id is not None and part.padding_idx == pad_id:
                nn.init.zeros_(part.weight[pad_id].detach())
        elif isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
    for part in module.modules():
        if isinstance(part, MultiHeadAttention):
            # query, key and value are one (3D, D) matrix that is cut: its bound, not those of the parts
            bound = math.sqrt(6 / (4 * part.query.in_features))
            for projection in (part.query, part.key_value):
                nn.init.uniform_(projection.weight, -bound, bound)


def initialise_truncated(module: nn.Module, std: float, pad_id: int | None = None) -> None:
    """Set every weight of a network as BERT begins (Devlin et al. 2019).

    Matrices and embeddings are normal, drawn again where they are beyond two standard deviations; biases are 0,
    norms 1 and 0.

    Args:
        module: the network.
        std: standard deviation before what is beyond two of them is cut off.
        pad_id: the row of every token embedding that starts at zero.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(part, nn.Embedding) and pad_id is not None and part.padding_idx == pad_id:
            nn.init.zeros_(part.weight[pad_id].detach())
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
        if isinstance(part, nn.Linear | nn.LayerNorm) and part.bias is not None:
            nn.init.zeros_(part.bias)


def tie(owner: nn.Linear | nn.Embedding, *others: nn.Linear | nn.Embedding) -> None:
    """Make the weight of `others` the very weight of `owner` (Press & Wolf 2017): it is then learned once.

    Raises:
        ValueError: the shapes differ.
    """
    for other in others:
        if other.weight.shape != owner.weight.shape:
            raise ValueError(
                f"weights of shape {tuple(owner.weight.shape)} and {tuple(other.weight.shape)} cannot be tied: "
                "tying source and target needs one joint vocabulary"
            )
        other.weight = owner.weight
