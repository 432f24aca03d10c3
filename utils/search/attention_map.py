"""All that a translator's attentions look at while it reads a text and says another."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from const.token import BOS, PAD_ID
from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock
from layers.mask import padding_mask
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
    """Where every head looks, with the tokens that rows and columns stand for."""

    src_tokens: list[str]  # with </s>
    tgt_tokens: list[str]  # with </s>
    weights: dict[Kind, list[Tensor]]  # (H, rows, columns) for each layer, from the source upwards

    def rows(self, kind: Kind) -> list[str]:
        """What looks: a source token, or what is about to choose a target token."""
        return self.src_tokens if kind == "encoder" else self.tgt_tokens

    def columns(self, kind: Kind) -> list[str]:
        """What is looked at: source tokens, or <s> and what was said before."""
        return [BOS, *self.tgt_tokens[:-1]] if kind == "decoder" else self.src_tokens


def attentions(model: Transformer) -> dict[Kind, list[MultiHeadAttention]]:
    """Those of each layer, from the source upwards; a BERT that reads the source is the beginning of the encoder."""
    encoder = [block for part in (model.src_embedding, model.encoder) for block in part.modules()]
    decoder = [cast(DecoderBlock, block) for block in model.decoder]
    return {
        "encoder": [block.self_attention for block in encoder if isinstance(block, EncoderBlock)],
        "decoder": [block.self_attention for block in decoder],
        "cross": [block.cross_attention for block in decoder],
    }


@contextmanager
def recorded_by_kind(model: Transformer) -> Iterator[dict[Kind, list[Tensor]]]:
    """Inside, the lists grow by the weights (B, H, T, S) of each layer as it is called."""
    with ExitStack() as recorders:
        yield {kind: recorders.enter_context(recorded_weights(layers)) for kind, layers in attentions(model).items()}


@torch.inference_mode()
def attention_weights(model: Transformer, src: Sequence[int], tgt: Sequence[int]) -> dict[Kind, list[Tensor]]:
    """Weights (H, T, S) of each layer, given a pair of id sequences.

    Args:
        model: is left in eval mode; may be packed.
        src: ids without </s>; the last source position is that of </s>.
        tgt: ids without <s> and </s>; row t is of the prediction of token t (the last: </s>).
    """
    model.eval()
    device = next(model.parameters()).device
    source, target = padded([src]).to(device), padded([tgt], bos=True)[:, :-1].to(device)
    with recorded_by_kind(model) as found:
        model.decode(target, model.encode(source), padding_mask(source, PAD_ID))
    return {kind: [weights[0].float().cpu() for weights in layers] for kind, layers in found.items()}


def row_entropy(weights: Float[Tensor, "... T S"]) -> Float[Tensor, "... T"]:
    """-Σₛ w log w in nats: 0 where a row has one key alone, log S where it has all S alike."""
    return torch.special.entr(weights).sum(-1)


def attention_entropy(
    weights: Float[Tensor, "... T S"], real: Bool[Tensor, " T"] | None = None
) -> Float[Tensor, "..."]:
    """Mean over the rows, in nats: how widely a head looks around.

    Args:
        weights: of heads and layers, (L, H, T, S) say.
        real: which rows count; None: all.
    """
    rows = row_entropy(weights)
    return rows.mean(-1) if real is None else rows[..., real].mean(-1)


def largest_entropy(kind: Kind, n_rows: int, n_columns: int) -> float:
    """Of a head that finds all that it may see alike: log S, where each row sees one more the mean of log 1 … S."""
    if kind == "decoder":
        return torch.arange(1, n_rows + 1).log().mean().item()
    return torch.tensor(n_columns).log().item()
