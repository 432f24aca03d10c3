"""A well-written plain training loop around `torch.nn.Transformer`, for bench.train."""

import math
import warnings

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.profiler import record_function

from const.token import PAD_ID
from models.transformer import TransformerConfig
from utils.dataset.batch import Batch


class PlainTransformer(nn.Module):
    """`torch.nn.Transformer` between one tied embedding, sinusoidal positions and the output.

    Args:
        config: sizes of the model; `config.dropout` also applies to attention weights, as torch has only one dropout.
        vocab: size of the shared vocabulary.
    """

    def __init__(self, config: TransformerConfig, vocab: int) -> None:
        super().__init__()
        c = config
        self.embedding = nn.Embedding(vocab, c.d_model, padding_idx=PAD_ID)
        nn.init.normal_(self.embedding.weight, std=c.d_model**-0.5)
        depth = c.n_encoder_layers, c.n_decoder_layers
        with warnings.catch_warnings(action="ignore"):  # torch warns that norm first rules out nested tensors
            self.transformer = nn.Transformer(
                c.d_model, c.n_heads, *depth, c.d_ff, c.dropout, batch_first=True, norm_first=True
            )
        self.dropout = nn.Dropout(c.dropout)
        angle = torch.arange(c.max_length)[:, None] / 10000 ** (torch.arange(0, c.d_model, 2) / c.d_model)
        self.positions: Tensor
        self.register_buffer("positions", torch.cat([angle.sin(), angle.cos()], dim=1))

    def embed(self, ids: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        """Embed tokens and their positions."""
        scale = math.sqrt(self.embedding.embedding_dim)
        return self.dropout(self.embedding(ids) * scale + self.positions[: ids.size(1)])

    def forward(self, src: Int[Tensor, "B S"], tgt: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Return the logits after each target position; padding is at the end, where the causal mask hides it."""
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), device=tgt.device)
        padding = src == PAD_ID
        hidden = self.transformer(
            self.embed(src),
            self.embed(tgt),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return F.linear(hidden, self.embedding.weight)


class PlainLoop:
    """Training with cross-entropy, label smoothing, gradient clipping and Adam.

    Args:
        model: model to train.
        smoothing: ε of label smoothing.
        bf16: whether to autocast to bfloat16.
    """

    def __init__(self, model: PlainTransformer, smoothing: float, bf16: bool) -> None:
        self.model = model.train()
        self.smoothing = smoothing
        self.bf16 = bf16
        self.adam = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))

    def train_step(self, batch: Batch) -> None:
        """Do one update."""
        with record_function("forward"), torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            logits = self.model(batch.src, batch.tgt[:, :-1])
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                batch.tgt[:, 1:].flatten(),
                ignore_index=PAD_ID,
                label_smoothing=self.smoothing,
            )
        with record_function("backward"):
            self.adam.zero_grad()
            loss.backward()
        with record_function("optimizer"):
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.adam.step()
