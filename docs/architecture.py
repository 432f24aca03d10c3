"""Figure 1 of Vaswani et al. 2017 for the networks of this project: what it shows is read from the network's modules.

Lengths are in pixels, for a picture as wide as GitHub shows it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Polyline
from torch import nn

from layers.positional_encoding import NoPositionalEncoding
from models.bert import BertForPreTraining
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from utils.config import AnyConfig
from utils.visualize.curve import drawing

_WIDTH, _HALF, _GAP = 830, 75, 15  # of the picture, half a box, a line between two boxes
EMBEDDING, ATTENTION, FEED, NORM, LINEAR = "#fadfdf", "#fde4c0", "#d5e8f5", "#f6f4c6", "#dcebd5"
DARK, GREY = "#333333", "#6b6b6b"
_TEXT: dict[str, Any] = {"color": DARK, "size": 8.5, "ha": "center", "va": "center_baseline", "zorder": 5}
_MONO: dict[str, Any] = {"color": GREY, "size": 7.2, "family": ["DejaVu Sans Mono", "IPAexGothic"]}
_LINE: dict[str, Any] = {"mutation_scale": 7, "lw": 0.9, "color": DARK, "shrinkA": 0, "shrinkB": 0, "zorder": 2}
_FRAME: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=5", "ec": "#b5b5b5", "lw": 0.8, "zorder": 0}


def n_parameters(net: nn.Module, name: str) -> int:
    """Count the parameters of a part; what several parts share belongs to the first of them."""
    return sum(p.numel() for own, p in net.named_parameters() if f"{own}.".startswith(f"{name}."))


@dataclass
class Canvas:
    """Draws text, lines and boxes."""

    axes: Any

    def text(self, x: float, y: float, text: str, **style: Any) -> None:
        """Write something around (x, y)."""
        self.axes.text(x, y, text, **_TEXT | style)

    def mono(self, x: float, y: float, text: str, **style: Any) -> None:
        """Write shapes and numbers, small and grey."""
        self.text(x, y, text, **_MONO | style)

    def line(self, *points: tuple[float, float], head: str = "-|>", **style: Any) -> None:
        """Draw an arrow along these points, or a line."""
        self.axes.add_patch(FancyArrowPatch(path=Polyline(points), arrowstyle=head, **_LINE | style))

    def rectangle(self, x: float, y: float, width: float, height: float, colour: str, **style: Any) -> None:
        """Draw a box around (x, y)."""
        corner = x - width / 2, y - height / 2
        self.axes.add_patch(FancyBboxPatch(corner, width, height, fc=colour, **_FRAME | style))

    def sum(self, x: float, y: float) -> None:
        """Draw a plus in a circle."""
        for marker, size in (("o", 10), ("+", 7)):
            self.axes.plot(x, y, marker, mfc="white", mec=DARK, ms=size, mew=0.9, zorder=4)


@dataclass
class _Sketch(Canvas):
    """Draws a network upwards: what comes next stands on (x, y)."""

    net: Any
    x: float = 0
    y: float = 26
    side: int = -1  # where residual paths run: -1 left, 1 right

    def tie(self, one: str, other: str, *points: tuple[float, float]) -> None:
        """Draw a dashed line between two parts if they share one matrix."""
        if self.net.get_submodule(one).weight is self.net.get_submodule(other).weight:
            self.line(*points, head="-", color=GREY, ls=(0, (4, 2.5)))

    def up(self, shape: str = "", height: float = _GAP, head: str = "-|>") -> None:
        """Draw a line, and beside it the shape of what it carries."""
        self.line((self.x, self.y), (self.x, self.y + height), head=head)
        align = "left" if self.side < 0 else "right"
        self.mono(self.x - 6 * self.side, self.y + height / 2, shape, ha=align)
        self.y += height

    def frame(self, width: float, height: float, colour: str, **style: Any) -> None:
        self.rectangle(self.x, self.y + height / 2, width, height, colour, **style)

    def box(self, label: str, colour: str, name: str = "", note: str = "", width: float = 2 * _HALF) -> float:
        """Draw a box with the number of parameters of the part of this name; return the height of its middle."""
        n = n_parameters(self.net, name)
        note = "   ".join(filter(None, (note, name and (f"{n:,}" if n else "shared"))))
        height, dx, dy = (24, 16, 0) if label == "Norm" else (40, 0, 8) if note else (24, 0, 0)
        middle = self.y + height / 2
        self.frame(width, height, colour, ec=DARK, zorder=4)
        self.text(self.x - dx, middle + dy, label)
        self.mono(self.x + 1.4 * dx, middle - 1.1 * dy, note)
        self.y += height
        return middle

    def norm(self, name: str) -> None:
        """Draw a line and a norm, unless there is none."""
        if n_parameters(self.net, name):
            self.up()
            self.box("Norm", NORM, name)

    def plus(self, height: float = _GAP) -> float:
        """Draw a line and a sum; return the height of the sum's middle."""
        self.up(height=height)
        self.y += 14
        self.sum(self.x, self.y - 7)
        return self.y - 7

    def enter(self, ids: str, shape: str, *box: Any) -> float:
        """Draw what goes in, and the box that it goes into; return the height of the box's middle."""
        self.text(self.x, self.y - 10, ids)
        self.up(shape, 20)
        return self.box(*box)

    def leave(self, shape: str, text: str) -> None:
        """Draw what comes out."""
        self.up(shape, 24)
        self.text(self.x, self.y + 10, text)

    def positions(self, name: str, shape: str) -> None:
        """Draw what is added to an embedding, if anything is, and the sum's way up."""
        if not isinstance(self.net.get_submodule(name), NoPositionalEncoding):
            learned, end, x = n_parameters(self.net, name) > 0, self.plus(24), self.x - 60 * self.side
            table = replace(self, x=x, y=end - (20 if learned else 12))
            table.box("Positions" if learned else "Sinusoid", EMBEDDING, name if learned else "", width=80)
            self.line((x, end), (self.x - 7 * self.side, end))
            self.up(head="-")
        self.up(shape, 24, head="-")

    def stack(self, name: str, mask: str = "") -> dict[str, float]:
        """Draw the first block of a stack, and how many there are; return the heights of its parts."""
        blocks, bottom, heights = self.net.get_submodule(name), self.y, dict[str, float]()
        for around, part, label, colour in (
            ("around_self", "self_attention", f"{mask} self-attention".strip().capitalize(), ATTENTION),
            ("around_cross", "cross_attention", "Cross-attention", ATTENTION),
            ("around_feed", "feed_forward", "Feed-forward", FEED),
        ):
            if hasattr(blocks[0], part):
                residual, rotary = getattr(blocks[0], around), getattr(getattr(blocks[0], part), "rotary", None)
                note = self.net.config.activation if part == "feed_forward" else "rotary" if rotary else ""
                self.up(head="-")
                begin, way = self.y, self.x + self.side * (_HALF + 12)
                if residual.norm_first:
                    self.norm(f"{name}.0.{around}")
                self.up()
                heights |= {around: begin, part: self.box(label, colour, f"{name}.0.{part}", note)}
                end = self.plus()
                self.line((self.x, begin), (way, begin), (way, end), (self.x + 7 * self.side, end))
                if not residual.norm_first:
                    self.norm(f"{name}.0.{around}")
        self.up(head="-")
        replace(self, y=bottom + 4).frame(190, self.y - bottom - 8, "#f6f6f6")
        x, y, align = self.x + 103 * self.side, (bottom + self.y) / 2, "left" if self.side > 0 else "right"
        self.text(x, y + 9, f"× {len(blocks)}", size=14, ha=align)
        self.mono(x, y - 10, "each", ha=align)
        self.mono(x, y - 22, f"{n_parameters(self.net, f'{name}.0'):,}", ha=align)
        return heights

    def output(self, shape: str, embedding: str, height: float) -> None:
        """Draw the projection to logits; the embedding that it may share its matrix with has this height."""
        self.up(f"{shape} D", 24)
        middle = self.box(f"Linear, V = {self.net.output.out_features:,}", LINEAR, "output")
        edge, way = self.x + _HALF, self.x + 168
        self.leave(f"{shape} V", "logits of the next token")
        self.tie(embedding, "output", (edge, height), (way, height), (way, middle), (edge, middle))

    def attention(self, name: str, memory: str) -> None:
        """Draw the inside of an attention, with its formula from the bottom up."""
        part, left, right = self.net.get_submodule(name), self.x - 111, self.x + 111
        query, both = replace(self, x=self.x - 78), replace(self, x=self.x + 39)
        query.enter("x", "B T D", "$W_Q$", LINEAR, f"{name}.query", "", 66)
        both.enter(memory, "B S D", "$W_K$, $W_V$", LINEAR, f"{name}.key_value", "", 144)
        bottom, key = both.y, replace(both, x=self.x)
        for column, shape in ((query, "B H T K"), (key, "B H S K")):
            column.up(shape, 40)
            if part.rotary is not None:
                column.box("Rotary", "white", width=66)
                column.up()
        scores = replace(key, x=key.x - 39)
        bias = [("+ relative positions", f"{name}.score_bias")] if part.score_bias is not None else []
        scaled = getattr(part.attention, "explicit", part.attention).scaled
        for label, bias_name in (("$QK^T$", ""), *bias, ("÷ √K, mask, softmax" if scaled else "mask, softmax", "")):
            scores.box(label, ATTENTION, bias_name, width=144)
            scores.up("B H T S", 24)
        self.line((self.x + 78, bottom), (self.x + 78, scores.y))
        scores.x = self.x
        scores.box("weights · V", ATTENTION, width=222)
        self.text(left, scores.y + 15, f"× {part.n_heads} heads", ha="left")
        scores.up("B H T K", 44)
        for shift in (8, 4, 0):  # a sheet for each head
            sheet = replace(self, x=self.x + shift, y=bottom + 8 + shift)
            sheet.frame(242, scores.y - bottom - 20, "white", zorder=-shift)
        scores.box("$W_O$", LINEAR, f"{name}.output", width=222)
        scores.up("B T D", 20)
        self.text(left, scores.y + 26, "Multi-head attention", size=10, ha="left")
        self.mono(right, scores.y + 26, f"{n_parameters(self.net, name):,}", size=8, ha="right")


def _transformer(start: _Sketch) -> None:
    source, target = replace(start, x=164), replace(start, x=380, side=1)
    for column, ids, side, shape in ((source, "source", "src", "B S"), (target, "target", "tgt", "B T")):
        scaled = " × √D" if start.net.config.scale_embedding else ""
        low = column.enter(ids, shape, f"Embedding{scaled}", EMBEDDING, f"{side}_embedding")
        column.positions(f"{side}_positions", f"{shape} D")
    edge = target.x - _HALF
    start.tie("src_embedding", "tgt_embedding", (source.x + _HALF, low), (edge, low))
    source.stack("encoder")
    source.norm("encoder_norm")
    memory = target.stack("decoder", "masked")["cross_attention"]
    target.norm("decoder_norm")
    target.output("B T", "tgt_embedding", low)
    between, top = (source.x + target.x) / 2, source.y + _GAP
    start.line((source.x, source.y), (source.x, top), (between, top), (between, memory), (edge, memory))
    start.mono((source.x + between) / 2, top + 8, "B S D")
    replace(start, x=690, y=170).attention("decoder.0.self_attention", "memory")


def _bert(start: _Sketch) -> None:
    words, places, body = (replace(start, x=x) for x in (225, 605, 415))
    scaled = " × √D" if start.net.config.scale_embedding else ""
    low = words.enter("token", "B L", f"Embedding{scaled}", EMBEDDING, "bert.embedding")
    places.enter("position", "L", "Position", EMBEDDING, "bert.positions")
    body.enter("number of the sentence", "B L", "Segment", EMBEDDING, "bert.segment_embedding")
    end = body.plus(24)
    for column, edge in ((words, body.x - 7), (places, body.x + 7)):
        column.line((column.x, column.y), (column.x, end), (edge, end))
    body.norm("bert.embedding_norm")
    body.up("B L D", 24, head="-")
    body.stack("bert.encoder")
    hidden, pair = replace(body, x=295, y=body.y + 40), replace(body, x=535, y=body.y + 40)
    for head, shape in ((hidden, "B L D"), (pair, "B D, first position")):
        head.line((body.x, body.y), (body.x, body.y + 10), (head.x, body.y + 10), (head.x, head.y))
        head.mono(head.x + 6, head.y - 15, shape, ha="left")
    hidden.box("Linear", LINEAR, "head.dense", start.net.config.activation)
    hidden.norm("head.norm")
    hidden.up()
    middle = hidden.box(f"Linear, V = {start.net.head.output.out_features:,}", LINEAR, "head.output", "bias")
    edge, way = words.x - _HALF, words.x - 100
    start.tie("bert.embedding", "head.output", (edge, low), (way, low), (way, middle), (hidden.x - _HALF, middle))
    pair.box("Linear", LINEAR, "pooler.dense", "tanh")
    pair.up()
    pair.box("Linear", LINEAR, "next_sentence")
    hidden.leave("B L V", "logits of the hidden tokens")
    pair.leave("B 2", "is it the next sentence?")


def _transformer_xl(start: _Sketch) -> None:
    body = replace(start, x=275, side=1)
    low = body.enter("segment", "B T", "Embedding × √D", EMBEDDING, "embedding")
    body.up("B T D", 24, head="-")
    heights = body.stack("blocks", "masked")
    body.output("B T", "embedding", low)
    kept, used = heights["around_self"], heights["self_attention"]
    memory = replace(start, x=80, y=used - 20)
    memory.line((memory.x, used), (body.x - _HALF, used))
    memory.line((body.x, kept), (memory.x, kept), (memory.x, memory.y))
    memory.box("Memory", "white", note=f"B M D   M = {start.net.config.memory_length}", width=120)
    memory.mono(memory.x, kept - 12, "one for each block")
    replace(start, x=690, y=90).attention("blocks.0.self_attention", "memory, then x")
    shared = n_parameters(start.net, "u") + n_parameters(start.net, "v")
    start.mono(690, 56, f"u and v, the same in all blocks: {shared:,}")


_NETWORKS: dict[str, tuple[str, Callable[[Any, int], nn.Module], Callable[[_Sketch], None]]] = {
    "translation": ("Transformer", lambda config, n_tokens: Transformer(config, n_tokens, n_tokens), _transformer),
    "masked_language": ("BERT", lambda config, n_tokens: BertForPreTraining(config, n_tokens + 1), _bert),  # + [MASK]
    "language": ("Transformer-XL", TransformerXL, _transformer_xl),
}


def draw_architecture(config: AnyConfig, picture: Path) -> None:
    """Draw a network, with the shapes of its tensors and the number of parameters of each part.

    Args:
        config: settings of a translator whose source has an embedding, of a BERT or of a Transformer-XL.
        picture: the file to write.
    """
    c: Any = config.model
    kind, make, draw = _NETWORKS[config.task]
    with torch.device("meta"):  # weights have shapes there, but no numbers
        net = make(c, config.tokenizer.vocab_size)
    with drawing(picture, (_WIDTH / 100, 1), dpi=140, layout=None) as figure:
        start = _Sketch(figure.add_axes((0, 0, 1, 1)), net)
        draw(start)
        top = max(text.get_position()[1] for text in start.axes.texts) + 40
        total, sizes = sum(p.numel() for p in net.parameters()), (c.d_model, c.n_heads, c.d_model // c.n_heads, c.d_ff)
        start.text(14, top + 22, f"{kind}, {config.name}", size=12, ha="left")
        start.mono(_WIDTH - 14, top + 22, f"{total:,} parameters", size=9, ha="right")
        start.mono(_WIDTH - 14, top, "D = {:,}   H = {}   K = {}   F = {:,}".format(*sizes), ha="right")
        figure.set_size_inches(_WIDTH / 100, (top + 44) / 100)
        start.axes.set(xlim=(0, _WIDTH), ylim=(0, top + 44))
        start.axes.set_axis_off()
