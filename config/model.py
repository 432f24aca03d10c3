"""The architectures: translators (Transformer, recurrent, decoder-only), BERT and its classifier, Transformer-XL."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Literal

from config.bound import Config, bounded

Activation = Literal["relu", "gelu", "mish", "swish"]
FeedForwardActivation = Literal[Activation, "swiglu"]
Norm = Literal["layer", "rms"]
Tie = Literal["none", "target", "all"]
Initialisation = Literal["unit_variance", "xavier_uniform"]


@dataclass(frozen=True)
class Architecture(Config):
    """Base: which of the settings the weights depend on, and what settings mean wherever a model has them.

    Args:
        d_model: width of every position.
        n_heads: heads of every attention.
        d_ff: inner width of the feed-forward layers.
        n_layers: depth.
        attention_dropout: probability of dropping an attention weight.
        max_length: longest input in tokens, </s> included.
        tie: what shares one matrix: nothing, the target embedding and the output, or (joint vocabulary) all three.
        fused: attention by torch's fused kernel (fast) or written out (readable, gives weights); equal results.
    """

    free: ClassVar[frozenset[str]] = frozenset({"dropout", "attention_dropout", "fused", "init_encoder"})
    has_blocks: ClassVar[bool] = True  # whose matrices Muon moves
    has_cross_attention: ClassVar[bool] = True  # a translator's, from the target to the source alone

    def check(self) -> None:
        """Refuse a width that attention will refuse, before a corpus is prepared for it."""
        d_model, n_heads = (getattr(self, name, 1) for name in ("d_model", "n_heads"))
        if d_model % n_heads:
            raise ValueError(f"d_model={d_model} does not split into n_heads={n_heads}: choose a multiple of n_heads")
        if getattr(self, "positions", "") == "rotary" and (width := d_model // n_heads) % 2:
            raise ValueError(f"positions=rotary turns pairs, but a head has {width} components: give an even number")

    def architecture(self) -> dict[str, object]:
        """Return the settings that weights depend on; the rest may differ when weights are reused."""
        return {name: value for name, value in asdict(self).items() if name not in self.free}

    def learned_positions(self) -> dict[str, int]:
        """Return how many positions learned tables of a translator have, by the names of these settings."""
        return {}


@dataclass(frozen=True)
class BertConfig(Architecture):
    """The architecture of a BERT; the defaults are Devlin et al.'s base.

    Args:
        dropout: probability of dropping a component of embeddings and sub-layer outputs.
        activation: non-linearity of the feed-forward layers and of the masked-language head.
        max_length: longest input in tokens, [CLS] and [SEP] included.
        n_segments: number of sentences that segment embeddings can tell apart in an input.
        scale_embedding: token embeddings times √D, as in the Transformer, or unscaled (BERT).
        norm_eps: added to the variance before a norm divides by its square root.
    """

    d_model: int = bounded(768, ge=1)
    n_heads: int = bounded(12, ge=1)
    d_ff: int = bounded(3072, ge=1)
    n_layers: int = bounded(12, ge=1)
    dropout: float = bounded(0.1, ge=0, lt=1)
    attention_dropout: float = bounded(0.1, ge=0, lt=1)
    activation: Activation = "gelu"
    max_length: int = bounded(512, ge=2)
    n_segments: int = bounded(2, ge=1)
    scale_embedding: bool = False
    norm_eps: float = bounded(1e-12, gt=0)
    fused: bool = True


@dataclass(frozen=True)
class ClassifierConfig(BertConfig):
    """The architecture of a BERT classifier.

    Args:
        pooling: what stands for the whole input: the first position, [CLS], or the mean of all but padding.
        init_encoder: a run whose BERT, with its vocabulary and architecture, is fine-tuned; null: train from scratch.
    """

    pooling: Literal["cls", "mean"] = "cls"
    init_encoder: Path | None = None

    def check(self) -> None:
        """Leave unchecked what the pre-trained BERT says."""
        if self.init_encoder is None:
            super().check()


@dataclass(frozen=True)
class TransformerConfig(Architecture):
    """The architecture of a translator; the defaults are Vaswani et al.'s base, with the norm first.

    Args:
        n_encoder_layers: depth of the encoder; on top of a BERT, if there is one.
        n_decoder_layers: depth of the decoder.
        dropout: probability of dropping a component of embeddings, sub-layer outputs and feed-forward insides.
        norm: layer: to mean 0 and variance 1, as in the paper; rms: only divided by the root mean square.
        norm_first: norm before each sub-layer (True) or after it, as in the paper (False).
        activation: non-linearity of the feed-forward layers; swiglu: a gate, with an inner width of about ⅔ d_ff, so
            that there are as many weights.
        positions: sinusoid of the paper, a learned table, rotary: every self-attention turns queries and keys; or none.
        scale_attention: scores divided by √K, as in the paper, or not.
        scale_embedding: token embeddings times √D, as in the paper, or not.
        max_length: longest input in tokens, </s> included; a learned table has as many rows.
        initialisation: unit_variance: embeddings have unit variance after their scaling by √D; xavier_uniform: every
            matrix by its own shape, embeddings too.
        bert: a BERT in place of the source's embedding and positions; null: those of the paper.
        init_encoder: a run whose BERT, with its vocabulary and architecture, the encoder is initialised from; null:
            training from scratch.
    """

    d_model: int = bounded(512, ge=1)
    n_heads: int = bounded(8, ge=1)
    d_ff: int = bounded(2048, ge=1)
    n_encoder_layers: int = bounded(6, ge=0)
    n_decoder_layers: int = bounded(6, ge=1)
    dropout: float = bounded(0.1, ge=0, lt=1)
    attention_dropout: float = bounded(0.0, ge=0, lt=1)
    norm_first: bool = True
    activation: FeedForwardActivation = "relu"
    positions: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal"
    max_length: int = bounded(256, ge=2)
    initialisation: Initialisation = "unit_variance"
    tie: Tie = "all"
    fused: bool = True
    bert: BertConfig | None = None
    init_encoder: Path | None = None
    scale_attention: bool = True
    scale_embedding: bool = True
    norm: Norm = "layer"

    def check(self) -> None:
        """Refuse an encoder without layers, unless a BERT has some of its own."""
        super().check()
        if self.n_encoder_layers < 1 and self.bert is None and self.init_encoder is None:
            raise ValueError(f"n_encoder_layers={self.n_encoder_layers}: give at least 1, or a BERT")

    def architecture(self) -> dict[str, object]:
        """Return the settings that weights depend on; the rest may differ when weights are reused."""
        free = {"initialisation", "bert"} | (set() if self.positions == "learned" else {"max_length"})
        own = {name: value for name, value in super().architecture().items() if name not in free}
        return own | ({} if self.bert is None else {"bert": self.bert.architecture()})

    def learned_positions(self) -> dict[str, int]:
        """Return how many positions learned tables have, by the names of these settings."""
        own = {"max_length": self.max_length} if self.positions == "learned" else {}
        return own if self.bert is None else own | {"bert.max_length": self.bert.max_length}


@dataclass(frozen=True)
class RecurrentConfig(Architecture):
    """The architecture of a recurrent translator; the defaults are about Bahdanau et al.'s.

    Args:
        d_model: width of the embeddings and of what the output reads.
        d_hidden: units of the decoder, of each direction of the encoder, and of the attention.
        dropout: probability of dropping a component of embeddings and of what the output reads.
    """

    free: ClassVar[frozenset[str]] = Architecture.free | {"max_length"}
    has_blocks: ClassVar[bool] = False
    init_encoder: ClassVar[None] = None  # there is no BERT in it

    d_model: int = bounded(620, ge=1)
    d_hidden: int = bounded(1000, ge=1)
    dropout: float = bounded(0.1, ge=0, lt=1)
    max_length: int = bounded(256, ge=2)
    tie: Tie = "all"


@dataclass(frozen=True)
class DecoderOnlyConfig(Architecture):
    """The architecture of a translator without an encoder; the defaults have about the size of Vaswani et al.'s base.

    Args:
        dropout: probability of dropping a component of embeddings, sub-layer outputs and feed-forward insides.
        activation: non-linearity of the feed-forward layers; swiglu: a gate, with an inner width of about ⅔ d_ff.
        norm: layer: to mean 0 and variance 1; rms: only divided by the root mean square. Before each sub-layer.
        max_length: longest source and longest target in tokens, </s> included.
    """

    free: ClassVar[frozenset[str]] = Architecture.free | {"max_length"}
    init_encoder: ClassVar[None] = None  # there is no BERT in it
    has_cross_attention: ClassVar[bool] = False
    positions: ClassVar[str] = "rotary"

    d_model: int = bounded(512, ge=2)
    n_heads: int = bounded(8, ge=1)
    d_ff: int = bounded(2048, ge=1)
    n_layers: int = bounded(14, ge=1)
    dropout: float = bounded(0.1, ge=0, lt=1)
    attention_dropout: float = bounded(0.0, ge=0, lt=1)
    activation: FeedForwardActivation = "relu"
    norm: Norm = "layer"
    max_length: int = bounded(256, ge=2)
    tie: Tie = "all"
    fused: bool = True


@dataclass(frozen=True)
class TransformerXLConfig(Architecture):
    """The architecture of a language model; the defaults are Dai et al.'s standard model for WikiText-103.

    Args:
        dropout: probability of dropping a component of embeddings, sub-layer outputs, feed-forward insides and output.
        activation: non-linearity of the feed-forward layers.
        memory_length: positions before a segment that are remembered in training; 0: none. Inference may remember
            more or fewer.
        tie: embedding and output share one matrix.
    """

    free: ClassVar[frozenset[str]] = Architecture.free | {"memory_length"}

    d_model: int = bounded(410, ge=1)
    n_heads: int = bounded(10, ge=1)
    d_ff: int = bounded(2100, ge=1)
    n_layers: int = bounded(16, ge=1)
    dropout: float = bounded(0.1, ge=0, lt=1)
    attention_dropout: float = bounded(0.0, ge=0, lt=1)
    activation: Activation = "relu"
    memory_length: int = bounded(150, ge=0, hint="0: no memory")
    tie: bool = True
    fused: bool = True
