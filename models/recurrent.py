"""The recurrent translator that attention was invented for: RNNsearch, Bahdanau et al. 2015.

What the paper is about is written out: the attention, and where it stands in each step of the decoder. The recurrence
itself, of gated recurrent units (GRU, Cho et al. 2014), is torch's.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from config.model import RecurrentConfig
from const.token import PAD_ID
from layers.additive_attention import AdditiveAttention
from layers.dropout import Dropout
from layers.mask import padding_mask
from layers.token_embedding import TokenEmbedding
from models.translation_model import TranslationModel
from models.weight import initialise


class RecurrentState(NamedTuple):
    """The state of decoding after some steps, for N sentences with W rows (beams) each; R = N · W.

    Immutable, as `TransformerState` is; but it stays of one size, where that grows by each token.
    """

    memory: Float[Tensor, "N S 2*G"]  # what the encoder read, forward and backward side by side; once per sentence
    key: Float[Tensor, "N S G"]  # the same, projected for the attention
    mask: Bool[Tensor, "N 1 S"]
    hidden: Float[Tensor, "R G"]

    def select(self, rows: Int[Tensor, "N W"]) -> "RecurrentState":
        """Keep these rows: W for each sentence that stays, from that sentence's own rows."""
        memory, key, mask, hidden = self
        if len(rows) < len(mask):
            sentences = rows[:, 0] // (len(hidden) // len(mask))
            memory, key, mask = (part.index_select(0, sentences) for part in (memory, key, mask))
        return RecurrentState(memory, key, mask, hidden.index_select(0, rows.flatten()))


class RecurrentDecoder(nn.Module):
    """One layer of gated recurrent units, which looks at the source before each step.

    cₜ = attend(hₜ₋₁, source) and hₜ = GRU([yₜ₋₁; cₜ], hₜ₋₁), with yₜ₋₁ the embedding of the token before (A.2.2).
    What comes out is the larger of each pair of components of U hₜ + V yₜ₋₁ + C cₜ (the paper takes hₜ₋₁ there): a
    maxout layer.
    """

    def __init__(self, d_model: int, d_hidden: int) -> None:
        super().__init__()
        self.attention = AdditiveAttention(d_hidden, 2 * d_hidden, d_hidden)
        self.cell = nn.GRUCell(d_model + 2 * d_hidden, d_hidden)
        self.readout = nn.Linear(d_hidden + d_model + 2 * d_hidden, 2 * d_model)

    def forward(
        self, x: Float[Tensor, "R T D"], state: RecurrentState
    ) -> tuple[Float[Tensor, "R T D"], Float[Tensor, "R 1 T S"], RecurrentState]:
        """Take T steps; return the outputs, the weights of the attention, as if of a single head, and the new state.

        The rows of a sentence (its beams) are adjacent, and attend to its source side by side.
        """
        memory, key, mask, hidden = state
        outputs, weights = list[Tensor](), list[Tensor]()
        for y in x.unbind(1):
            beams = hidden.unflatten(0, (len(memory), -1))
            context, weight = self.attention.attend(beams, key, memory, mask)
            read = torch.cat([y, context.flatten(0, 1)], -1)
            hidden = self.cell(read, hidden)
            outputs.append(torch.cat([hidden, read], -1))
            weights.append(weight.flatten(0, 1))
        output = self.readout(torch.stack(outputs, 1)).unflatten(-1, (-1, 2)).amax(-1)
        return output, torch.stack(weights, 1)[:, None], state._replace(hidden=hidden)


class RecurrentTranslator(TranslationModel):
    """Source ids in, logits of the next target token out."""

    def __init__(self, config: RecurrentConfig, src_vocab: int, tgt_vocab: int) -> None:
        super().__init__()
        self.config = c = config
        self.src_embedding = TokenEmbedding(src_vocab, c.d_model, padding_idx=PAD_ID)
        self.tgt_embedding = TokenEmbedding(tgt_vocab, c.d_model, padding_idx=PAD_ID)
        self.encoder = nn.GRU(c.d_model, c.d_hidden, bidirectional=True, batch_first=True)
        self.first = nn.Linear(c.d_hidden, c.d_hidden)
        self.decoder = RecurrentDecoder(c.d_model, c.d_hidden)
        self.output = nn.Linear(c.d_model, tgt_vocab, bias=c.tie == "none")
        self.dropout = Dropout(c.dropout)
        initialise(self)  # recurrent layers have been by torch: ±1 / √G, uniformly
        self.tie(c.tie)

    def start(self, src: Int[Tensor, "N S"]) -> RecurrentState:
        """Encode N sources, ready for the first step, with one row each."""
        lengths = (src != PAD_ID).sum(1).cpu()  # so that the backward direction begins behind the last token
        x = self.dropout(self.src_embedding(src))
        read, (_, backward) = self.encoder(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        memory, _ = pad_packed_sequence(read, batch_first=True, total_length=src.size(1))
        hidden = self.first(backward).tanh().to(memory.dtype)
        return RecurrentState(memory, self.decoder.attention.project(memory), padding_mask(src, PAD_ID)[:, 0], hidden)

    def decode(self, tgt: Int[Tensor, "R T"], state: RecurrentState) -> tuple[Float[Tensor, "R T D"], RecurrentState]:
        """Decode T more positions."""
        x, _, state = self.decoder(self.dropout(self.tgt_embedding(tgt)), state)
        return self.dropout(x), state
