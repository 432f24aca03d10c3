"""What the decoder's last block looks at in a source while it says a given translation."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from const.token import PAD_ID
from layers.decoder_block import DecoderBlock
from layers.mask import padding_mask
from layers.recorded_weights import recorded_weights
from layers.scaled_dot_product_attention import ScaledDotProductAttention
from models.transformer import Transformer
from utils.dataset.batch import padded, within_budget

_TOKENS_PER_BATCH = 8192  # positions of the longer side, padding included


class CrossAttention:
    """Asks a model for weights, mean over the heads of its last cross-attention.

    Args:
        model: in eval mode; from now on its last cross-attention is the formula written out, which shows its weights.
    """

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._attention = ScaledDotProductAttention()
        cast(DecoderBlock, model.decoder[-1]).cross_attention.attention = self._attention

    @torch.inference_mode()
    def weights(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Float[Tensor, "T S"]]:
        """How much each target token was chosen by looking at each source token.

        Args:
            sources: ids without </s>.
            targets: their translations, without <s> and </s>.

        Returns:
            For each pair a row for each target token, over the source tokens and the </s> behind them; rows sum to 1.
        """
        found: list[Tensor] = [torch.empty(0)] * len(sources)
        lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
        device = next(self._model.parameters()).device
        for rows in within_budget(lengths, _TOKENS_PER_BATCH):
            src = padded([sources[i] for i in rows]).to(device)
            tgt = padded([targets[i] for i in rows], bos=True)[:, :-1].to(device)
            with recorded_weights([self._attention]) as recorded:
                self._model.decode(tgt, self._model.encode(src), padding_mask(src, PAD_ID))
            for i, weights in zip(rows, recorded[0].mean(1).float().cpu(), strict=True):
                found[i] = weights[: len(targets[i]), : len(sources[i]) + 1]
        return found
