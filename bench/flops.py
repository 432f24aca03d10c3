"""Floating-point operations that a model needs to learn from text, counted by hand from shapes.

Only matrix products count, 2 per multiply-add, over real tokens: padding, dropout, norms and softmax are not useful
work. Attention counts as whole squares, causal or not (as in Chowdhery et al. 2022, appendix B), and the backward pass
counts twice the forward pass.
"""

import numpy as np
from numpy.typing import NDArray

from models.transformer import TransformerConfig


def training_flops(
    config: TransformerConfig, tgt_vocab: int, src: NDArray[np.int64], tgt: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the operations of the forward and the backward pass for each pair.

    Args:
        config: architecture of the model.
        tgt_vocab: size of the target vocabulary.
        src: number of tokens of each source, </s> included.
        tgt: number of tokens to predict in each target, </s> included.
    """
    d = config.d_model
    projection = 2 * d * d  # a token through one of query, key, value, output
    feed_forward = 4 * d * config.d_ff
    encoder = src * (4 * projection + feed_forward) + _attention(src, src, d)
    decoder = (
        tgt * (4 * projection + feed_forward)
        + _attention(tgt, tgt, d)
        + (tgt + src) * 2 * projection  # query and output of the target, key and value of the source
        + _attention(tgt, src, d)
    )
    output = tgt * 2 * d * tgt_vocab
    return 3 * (config.n_encoder_layers * encoder + config.n_decoder_layers * decoder + output)


def _attention(queries: NDArray[np.int64], keys: NDArray[np.int64], d_model: int) -> NDArray[np.int64]:
    """Count QKᵀ and its product with V, over all heads."""
    return 4 * queries * keys * d_model
