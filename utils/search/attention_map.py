"""The attention weights of a translator's layers and heads, given a source text and its translation."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from const.token import BOS
from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock
from layers.multi_head_attention import MultiHeadAttention
from layers.recorded_weights import recorded_weights
from models.transformer import Transformer
from utils.dataset.batch import padded

Kind = Literal["encoder", "decoder", "cross"]
KINDS: dict[Kind, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}


class AttentionMap(NamedTuple):
    """What every head attends to, with the tokens that rows and columns stand for."""

    src_tokens: list[str]  # with </s>
    tgt_tokens: list[str]  # with </s>
    weights: dict[Kind, list[Tensor]]  # (H, rows, columns) for each layer, from the source upwards

    def rows(self, kind: Kind) -> list[str]:
        """Return the queries: source tokens, or the target tokens about to be predicted."""
        return self.src_tokens if kind == "encoder" else self.tgt_tokens

    def columns(self, kind: Kind) -> list[str]:
        """Return the keys: source tokens, or <s> and the target tokens before."""
        return [BOS, *self.tgt_tokens[:-1]] if kind == "decoder" else self.src_tokens


def attentions(model: Transformer) -> dict[Kind, list[MultiHeadAttention]]:
    """Return the attentions of each layer, from the source upwards; a BERT that reads the source comes first."""
    encoder = [block for part in (model.src_embedding, model.encoder) for block in part.modules()]
    decoder = [cast(DecoderBlock, block) for block in model.decoder]
    return {
        "encoder": [block.self_attention for block in encoder if isinstance(block, EncoderBlock)],
        "decoder": [block.self_attention for block in decoder],
        "cross": [block.cross_attention for block in decoder],
    }


@contextmanager
def recorded_by_kind(model: Transformer) -> Iterator[dict[Kind, list[Tensor]]]:
    """Within the block, append the weights (B, H, T, S) of each layer to its list as it is called."""
    with ExitStack() as recorders:
        yield {kind: recorders.enter_context(recorded_weights(layers)) for kind, layers in attentions(model).items()}


@torch.inference_mode()
def attention_weights(model: Transformer, src: Sequence[int], tgt: Sequence[int]) -> dict[Kind, list[Tensor]]:
    """Return the weights (H, T, S) of each layer for a pair of id sequences, by forced decoding.

    Args:
        model: a model, packed or not; left in eval mode.
        src: ids without </s>; the last source position is that of </s>.
        tgt: ids without <s> and </s>; row t belongs to the prediction of token t (the last one: </s>).
    """
    model.eval()
    device = next(model.parameters()).device
    source, target = padded([src]).to(device), padded([tgt], bos=True)[:, :-1].to(device)
    with recorded_by_kind(model) as found:
        model.hidden(source, target)
    return {kind: [weights[0].float().cpu() for weights in layers] for kind, layers in found.items()}


def row_entropy(weights: Float[Tensor, "... T S"]) -> Float[Tensor, "... T"]:
    """Return -Σₛ w log w in nats: 0 where a row has a single key, log S where it weighs all S equally."""
    return torch.special.entr(weights).sum(-1)


def attention_entropy(
    weights: Float[Tensor, "... T S"], real: Bool[Tensor, " T"] | None = None
) -> Float[Tensor, "..."]:
    """Return the mean entropy of the rows in nats: how widely a head spreads its attention.

    Args:
        weights: weights of heads and layers, such as (L, H, T, S).
        real: which rows count; None: all.
    """
    rows = row_entropy(weights)
    return rows.mean(-1) if real is None else rows[..., real].mean(-1)


def largest_entropy(kind: Kind, n_rows: int, n_columns: int) -> float:
    """Return the entropy of uniform attention: log S, or the mean of log 1 … S where each row sees one key more."""
    if kind == "decoder":
        return torch.arange(1, n_rows + 1).log().mean().item()
    return torch.tensor(n_columns).log().item()
