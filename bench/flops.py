"""Floating-point operations that a model needs to learn from text, counted by hand from shapes.

Products of matrices alone, 2 per multiplication with its addition, over real tokens: padding, dropout, norms and
softmax are no work that was asked for. Attention counts whole squares, causal or not (as Chowdhery et al. 2022,
appendix B, do), and the backward pass twice the forward one.
"""

import numpy as np
from numpy.typing import NDArray

from models.transformer import TransformerConfig


def training_flops(
    config: TransformerConfig, tgt_vocab: int, src: NDArray[np.int64], tgt: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Of the forward and the backward pass over each pair.

    Args:
        config: the architecture.
        tgt_vocab: number of target tokens.
        src: tokens of each source, </s> included.
        tgt: tokens that each target predicts, </s> included.
    """
    d = config.d_model
    projection = 2 * d * d  # a token through one of query, key, value, output
    feed_forward = 4 * d * config.d_ff
    encoder = src * (4 * projection + feed_forward) + _attention(src, src, d)
    decoder = (
        tgt * (4 * projection + feed_forward)
        + _attention(tgt, tgt, d)
        + (tgt + src) * 2 * projection  # of the target query and output, of the source key and value
        + _attention(tgt, src, d)
    )
    output = tgt * 2 * d * tgt_vocab
    return 3 * (config.n_encoder_layers * encoder + config.n_decoder_layers * decoder + output)


def _attention(queries: NDArray[np.int64], keys: NDArray[np.int64], d_model: int) -> NDArray[np.int64]:
    """QKᵀ and its product with V, over all heads."""
    return 4 * queries * keys * d_model
