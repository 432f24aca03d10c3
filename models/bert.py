"""BERT, Devlin et al. 2019: a Transformer's encoder over masked sentences, and its heads."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from config.model import BertConfig, ClassifierConfig
from const.token import PAD_ID
from layers.dropout import Dropout
from layers.encoder_block import EncoderBlock
from layers.feed_forward import ACTIVATION, FeedForward
from layers.mask import padding_mask
from layers.multi_head_attention import MultiHeadAttention
from layers.positional_encoding import LearnedPositionalEncoding
from layers.scaled_dot_product_attention import attention_kernel
from layers.token_embedding import TokenEmbedding
from models.weight import initialise_truncated, tie

_STD = 0.02  # initial standard deviation of every matrix and embedding, as in the paper's code


class Bert(nn.Module):
    """Ids in, a contextual vector for each position out."""

    def __init__(self, config: BertConfig, vocab: int, pad_id: int = PAD_ID) -> None:
        super().__init__()
        self.config = c = config
        self.pad_id = pad_id
        table = TokenEmbedding if c.scale_embedding else nn.Embedding
        self.embedding = table(vocab, c.d_model, padding_idx=pad_id)
        self.segment_embedding = nn.Embedding(c.n_segments, c.d_model)
        self.positions = LearnedPositionalEncoding(c.d_model, c.max_length)
        self.embedding_norm = nn.LayerNorm(c.d_model, c.norm_eps)
        self.dropout = Dropout(c.dropout)
        self.encoder = nn.ModuleList(
            EncoderBlock(
                MultiHeadAttention(c.d_model, c.n_heads, attention_kernel(c.fused, c.attention_dropout)),
                FeedForward(c.d_model, c.d_ff, c.activation),
                c.d_model,
                c.dropout,
                norm_first=False,
                norm_eps=c.norm_eps,
            )
            for _ in range(c.n_layers)
        )
        initialise_truncated(self, _STD)

    def forward(self, ids: Int[Tensor, "B L"], segments: Int[Tensor, "B L"] | None = None) -> Float[Tensor, "B L D"]:
        """Return the output of the last block, for at most `max_length` positions.

        Without `segments`, the numbers of the tokens' sentences, all belong to the first.
        """
        x, mask = self.embed(ids, segments), padding_mask(ids, self.pad_id)
        for block in self.encoder:
            x = block(x, mask)
        return x

    def embed(self, ids: Int[Tensor, "B L"], segments: Int[Tensor, "B L"] | None) -> Float[Tensor, "B L D"]:
        """Return token + segment + position embeddings, normed."""
        segments = torch.zeros_like(ids) if segments is None else segments
        x = self.positions(self.embedding(ids) + self.segment_embedding(segments))
        return self.dropout(self.embedding_norm(x))


class Pooler(nn.Module):
    """tanh(W h + b) of the first position, [CLS], or of a mean: a vector for the whole input."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)
        initialise_truncated(self, _STD)

    def forward(self, x: Float[Tensor, "B L D"], real: Bool[Tensor, "B L"] | None = None) -> Float[Tensor, "B D"]:
        """Pool the first position, or the mean of those that are `real`, into one vector."""
        pooled = x[:, 0] if real is None else (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return self.dense(pooled).tanh()


class MaskedLanguageHead(nn.Module):
    """Predicts masked tokens: norm(f(W h + b)), then its product with each token embedding of the BERT, plus a bias."""

    def __init__(self, config: BertConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.activation = ACTIVATION[config.activation]
        self.norm = nn.LayerNorm(config.d_model, config.norm_eps)
        self.output = nn.Linear(config.d_model, embedding.num_embeddings)
        initialise_truncated(self, _STD)
        tie(embedding, self.output)

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Return logits of the tokens at each position."""
        return self.output(self.hidden(x))

    def hidden(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Return what `output` makes logits of: a step of its own, so that a loss can apply it slice by slice."""
        return self.norm(self.activation(self.dense(x)))


class Prediction(NamedTuple):
    """Logits of the two pre-training tasks of BERT."""

    tokens: Float[Tensor, "B L V"]
    follows: Float[Tensor, "B 2"]  # no, yes


class BertForPreTraining(nn.Module):
    """BERT with its pre-training heads.

    `next_sentence` predicts from the pooled vector whether the second sentence follows the first: class 1 is yes.
    """

    def __init__(self, config: BertConfig, vocab: int, pad_id: int = PAD_ID) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config, vocab, pad_id)
        self.head = MaskedLanguageHead(config, self.bert.embedding)
        self.pooler = Pooler(config.d_model)
        self.next_sentence = nn.Linear(config.d_model, 2)
        initialise_truncated(self.next_sentence, _STD)

    def forward(self, ids: Int[Tensor, "B L"], segments: Int[Tensor, "B L"] | None = None) -> Prediction:
        """Return logits at every position, masked or not."""
        x = self.bert(ids, segments)
        return Prediction(self.head(x), self.next_sentence(self.pooler(x)))


class BertClassifier(nn.Module):
    """BERT that classifies its input."""

    def __init__(self, config: ClassifierConfig, vocab: int, n_classes: int) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config, vocab)
        self.pooler = Pooler(config.d_model)
        self.dropout = Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, n_classes)
        initialise_truncated(self.classifier, _STD)

    def forward(self, ids: Int[Tensor, "B L"], segments: Int[Tensor, "B L"] | None = None) -> Float[Tensor, "B C"]:
        """Return logits of the classes."""
        real = ids != self.bert.pad_id if self.config.pooling == "mean" else None
        return self.classifier(self.dropout(self.pooler(self.bert(ids, segments), real)))
