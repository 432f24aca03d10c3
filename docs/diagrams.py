"""The diagrams of docs/, drawn from boxes, cells and arrows; docs/figures.py names them. Lengths are in pixels."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from config.data import DataConfig, TokenizerConfig
from const.path import PICKLES
from const.token import BOS, EOS
from docs.architecture import ATTENTION, DARK, EMBEDDING, FEED, GREY, LINEAR, NORM, Canvas
from utils.dataset.corpus import prepare_corpus
from utils.dataset.text import read_lines
from utils.load import load_run
from utils.search.forced import AttentionMap, Kind, attention_weights
from utils.text.tokenizer import SentencePieceTokenizer, every_token
from utils.visualize.attention import heat_map
from utils.visualize.curve import drawing, sheet

_BLUE, _ORANGE, _PALE = "#4a90c2", "#e0853c", "#f2f2f2"


class _Board(Canvas):
    """Draws boxes around points."""

    def box(self, x: float, y: float, label: str, colour: str = "white", width: float = 74, **style: Any) -> None:
        self.rectangle(x, y, width, 24, colour, **{"ec": DARK, "zorder": 4} | style)
        self.text(x, y, label)

    def cells(self, x: float, y: float, colours: Sequence[Sequence[str]], size: float = 15) -> None:
        """Draw a table of cells whose upper left corner is (x, y)."""
        for i, row in enumerate(colours):
            for j, colour in enumerate(row):
                middle = x + (j + 0.5) * size, y - (i + 0.5) * size
                self.rectangle(*middle, size - 1, size - 1, colour, boxstyle="square,pad=0", ec="none")

    def up(self, x: float, low: float, high: float, **style: Any) -> None:
        """Draw an arrow between the boxes around two heights."""
        self.line((x, low + 13), (x, high - 13), **style)


@contextmanager
def _board(picture: Path, width: float, height: float) -> Iterator[_Board]:
    with drawing(picture, (width / 100, height / 100), dpi=140, layout=None) as figure:
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(0, height))
        axes.set_axis_off()
        yield _Board(axes)


def merges(text: str, ranks: dict[str, int]) -> list[tuple[list[str], str]]:
    """Return how byte pairs join a word: the pieces after each join, and what was joined."""
    pieces = list(text)
    steps = [(pieces, "")]
    while known := [left + right for left, right in pairwise(pieces) if left + right in ranks]:
        best, joined = min(known, key=ranks.__getitem__), list[str]()
        for piece in pieces:
            if joined and joined[-1] + piece == best:
                joined[-1] = best
            else:
                joined.append(piece)
        pieces = joined
        steps.append((pieces, best))
    return steps


def draw_merges(picture: Path) -> None:
    """Draw how two words are joined from characters, by the pieces of page 0."""
    corpus = prepare_corpus(DataConfig(corpus="embedded"))
    lines = read_lines(corpus.train.src)[:300] + read_lines(corpus.train.tgt)[:300]
    n_characters = len({*"".join(lines), "▁"} - {" "})
    config = TokenizerConfig(kind="bpe", vocab_size=4 + 300 + n_characters, character_coverage=1.0)
    ranks = {piece: i for i, piece in enumerate(every_token(SentencePieceTokenizer.train(config, [lines]))[4:304], 1)}
    words = [merges(word, ranks) for word in ("▁garden", "▁older", "建てられました")]
    with _board(picture, 830, 40 + 34 * max(map(len, words))) as board:
        x = 20.0
        for steps in words:
            for row, (pieces, joined) in enumerate(steps):
                left, y = x, 34 * (max(map(len, words)) - row) - 4
                for piece in pieces:
                    width = 22 * len(piece)
                    board.box(left + width / 2, y, piece, FEED if piece == joined else "white", width - 4)
                    left += width
                board.mono(left + 6, y, f"join {ranks[joined]}" if joined else "characters", ha="left", size=8)
            x += 22 * len(steps[0][0]) + 110


def draw_split(picture: Path) -> None:
    """Draw how two heads share the components of each position."""
    torch.manual_seed(3)
    n, heads = 4, (_BLUE, _ORANGE)
    whole = [[colour for colour in heads for _ in range(4)]] * n
    with _board(picture, 830, 262) as board:

        def matrix(x: float, y: float, colours: Sequence[Sequence[str]], below: str, shape: str) -> None:
            board.cells(x, y, colours)
            middle, bottom = x + 7.5 * len(colours[0]), y - 15 * len(colours)
            board.text(middle, bottom - 12, below)
            board.mono(middle, bottom - 26, shape)

        matrix(20, 165, whole, "$xW_Q$, $xW_K$, $xW_V$", "L × D")
        for y, (i, colour) in zip((238, 112), enumerate(heads, 1), strict=True):
            weights = torch.randn(n, n).mul(2).softmax(-1)
            shades = [[f"{colour}{round(40 + 215 * share):02x}" for share in row] for row in weights.tolist()]
            board.text(220, y + 10, f"head {i}")
            matrix(190, y, [[colour] * 4] * n, "Q, K, V", "L × K")
            matrix(330, y, shades, "softmax$(QK^T/√K)$", "L × L")
            matrix(470, y, [[colour] * 4] * n, "weights · V", "L × K")
            for left, right in ((252, 326), (392, 466)):
                board.line((left, y - 30), (right, y - 30))
            board.line((144, 135), (186, y - 30))
            board.line((532, y - 30), (576, 135))
        matrix(580, 165, whole, "side by side", "L × D")
        board.line((702, 135), (726, 135))
        board.box(760, 135, "$W_O$", LINEAR, 64)


def draw_unrolled(picture: Path) -> None:
    """Draw a recurrent network with attention, unrolled over a sentence, and self-attention beside it."""
    source, target, step = ("京都", "は", "古都", "です"), ("Kyoto", "is", "old"), 92
    with _board(picture, 830, 330) as board:
        xs = [60 + step * i for i in range(len(source))]
        ys = [80 + step * i for i in range(len(target))]
        for x, token in zip(xs, source, strict=True):
            board.text(x, 22, token)
            board.line((x, 32), (x, 56))
            board.box(x, 70, "→", FEED, 50)
            board.box(x, 112, "←", FEED, 50)
            board.up(x, 70, 112)
        for one, other in pairwise(xs):
            board.line((one + 26, 70), (other - 26, 70))
            board.line((other - 26, 112), (one + 26, 112))
        for x, token in zip(ys, target, strict=True):
            board.box(x, 230, "state", NORM, 50)
            board.up(x, 230, 288)
            board.text(x, 286, token)
        for one, other in pairwise(ys):
            board.line((one + 26, 230), (other - 26, 230))
            board.line((one, 277), (other - 46, 277), (other - 46, 236), (other - 26, 236), color=GREY, ls=":")
        for x in xs:
            board.line((x, 125), (ys[1], 217), color=_ORANGE, ls="--")
        board.text(20, 174, "attention\nof one step", ha="left", color=_ORANGE)
        board.text(195, 318, "recurrent: a step for each token", size=10)
        right = [500 + step * i for i in range(len(source))]
        for x, token in zip(right, source, strict=True):
            board.text(x, 22, token)
            board.line((x, 32), (x, 86))
            for y in (96, 186, 276):
                board.axes.plot(x, y, "o", color=_BLUE, ms=11, zorder=4)
        for low in (96, 186):
            for one in right:
                for other in right:
                    board.line((one, low + 8), (other, low + 82), head="-", color=_ORANGE, lw=0.8, zorder=1)
        board.text(638, 318, "self-attention: all tokens at once, in each layer", size=10)


def draw_norm_order(picture: Path) -> None:
    """Draw two sub-layers with their way around, norm last and norm first."""
    with _board(picture, 830, 360) as board:
        for x, title, formula, first in (
            (160, "norm last (Post-LN)", "norm(x + f(x))", False),
            (540, "norm first (Pre-LN)", "x + f(norm(x))", True),
        ):
            side = x + 110
            board.text(x + 60, 346, title, size=10)
            board.mono(x + 60, 330, formula, size=8)
            board.text(x, 14, "x")
            board.line((x, 26), (x, 318), lw=2.5, color=_BLUE, mutation_scale=11)
            for low, part, colour in ((36, "Self-attention", ATTENTION), (170, "Feed-forward", FEED)):
                middle, end = (low + 70, low + 104) if first else (low + 40, low + 74)
                board.line((x, low), (side, low), (side, low + 18 if first else middle - 13))
                if first:
                    board.box(side, low + 30, "Norm", NORM, 60)
                    board.up(side, low + 30, middle)
                else:
                    board.box(x, low + 106, "Norm", NORM, 60)
                board.box(side, middle, part, colour, 134)
                board.line((side, middle + 13), (side, end), (x + 7, end))
                board.sum(x, end)


def draw_dropout(picture: Path) -> None:
    """Draw where dropout acts, and what it leaves of a few vectors in two updates."""
    drop, weights = "dropout", "attention_dropout"
    ways = {
        "embedding": (("Embedding × √D", EMBEDDING), ("+ positions", EMBEDDING), (drop, "")),
        "attention": (
            ("$QK^T$ ÷ √K, softmax", ATTENTION),
            (weights, ""),
            ("· V, $W_O$", LINEAR),
            (drop, ""),
            ("+ x", "white"),
        ),
        "feed-forward": (("$W_1$, ReLU", FEED), (drop, ""), ("$W_2$", FEED), (drop, ""), ("+ x", "white")),
    }
    with _board(picture, 830, 290) as board:
        for y, (name, parts) in zip((262, 212, 162), ways.items(), strict=True):
            board.text(14, y, name, ha="left")
            x = 130.0
            for i, (label, colour) in enumerate(parts):
                width = 130 if i == 0 else 60 if label == "+ x" else 128
                if i:
                    board.line((x, y), (x + 16, y))
                    x += 16
                board.box(x + width / 2, y, label, colour or "#3c4654", width)
                if not colour:
                    board.axes.texts[-1].set_color("white")
                x += width
        draw = torch.Generator().manual_seed(1)
        values = torch.randn(5, 12, generator=draw)
        for x, title, kept in (
            (100, "vectors", None),
            (340, "one update: p = 0.3", torch.rand(5, 12, generator=draw) > 0.3),
            (580, "the next", torch.rand(5, 12, generator=draw) > 0.3),
        ):
            shown = values if kept is None else values * kept / 0.7
            board.text(x + 90, 126, title)
            board.cells(x, 114, _shades(shown))
        board.mono(430, 22, "white: 0; all others × 1 / (1 − p). In translating, nothing is dropped.", size=8)


def _shades(values: Tensor) -> list[list[str]]:
    """Return red for positive numbers, blue for negative ones, paler towards 0, which is white."""
    alphas = (40 * values.ne(0) + 90 * values.abs()).clip(max=255).int().tolist()
    signs = (values > 0).tolist()
    pairs = (zip(*rows, strict=True) for rows in zip(signs, alphas, strict=True))
    return [[f"{'#b2182b' if positive else '#2166ac'}{alpha:02x}" for positive, alpha in row] for row in pairs]


def draw_teacher_forcing(picture: Path) -> None:
    """Draw what a decoder reads and predicts: in training the right translation, then what it wrote itself."""
    right, said = ["Kyoto", "is", "old", ".", EOS], ["Kyoto", "was", "old", ".", EOS]
    with _board(picture, 830, 432) as board:
        for bottom, title, read, predicted in (
            (218, "training: the right translation is read, whatever was predicted", [BOS, *right[:-1]], said),
            (8, "translating: what was predicted is read", [BOS, *said[:-1]], said),
        ):
            training = read[2] == "is"
            board.text(20, bottom + (198 if training else 172), title, size=10, ha="left")
            board.rectangle(470, bottom + 80, 580, 26, ATTENTION, ec=DARK)
            board.text(470, bottom + 80, "decoder, each position sees itself and those before")
            rows = {20: ("read", read), 136: ("predicted", predicted)} | ({166: ("right", right)} if training else {})
            for y, (name, tokens) in rows.items():
                board.text(20, bottom + y, name, ha="left")
                for i, token in enumerate(tokens):
                    wrong = y == 136 and token != right[i]
                    colour = EMBEDDING if wrong else FEED if name in ("read", "right") else "white"
                    board.box(230 + 120 * i, bottom + y, token, colour)
            for i in range(5):
                x = 230 + 120 * i
                board.up(x, bottom + 20, bottom + 80)
                board.up(x, bottom + 80, bottom + 136)
                if i < 4:
                    start = bottom + (166 if training else 136)
                    style = {"color": _BLUE if training else _ORANGE, "ls": "--"}
                    path = (x + 38, start), (x + 60, start), (x + 60, bottom + 20), (x + 82, bottom + 20)
                    board.line(*path, **style)


FOLLOWS = {  # the toy of page 6
    BOS: {"the": 0.6, "an": 0.4},
    "the": {"cat": 0.4, "dog": 0.35, "owl": 0.25},
    "an": {"owl": 0.9, "cat": 0.1},
}


def draw_beam(picture: Path) -> None:
    """Draw all translations of a toy as a tree, and which of them a beam of two keeps."""
    with _board(picture, 830, 258) as board:
        board.box(80, 125, BOS)
        leaves = [(p * q, a, b) for a, p in FOLLOWS[BOS].items() for b, q in FOLLOWS[a].items()]
        kept = sorted(leaves, reverse=True)[:2]
        ys = {leaf: 214 - 42 * i for i, leaf in enumerate(leaves)}
        for first, p in FOLLOWS[BOS].items():
            own = [leaf for leaf in leaves if leaf[1] == first]
            middle = sum(ys[leaf] for leaf in own) / len(own)
            _branch(board, (117, 125), (270, middle), f"{first}  {p:g}", True)
            for leaf in own:
                note = "best of all" if leaf == kept[0] else "greedy search ends here" if leaf == kept[1] else ""
                label = f"{leaf[2]}  {p:g} · {FOLLOWS[first][leaf[2]]:g} = {leaf[0]:.2f}"
                _branch(board, (325, middle), (520, ys[leaf]), label, leaf in kept, 150)
                board.text(604, ys[leaf], note or ("kept" if leaf in kept else "dropped"), ha="left")
        for x, text in ((270, "step 1: both kept"), (520, "step 2: two of five kept")):
            board.text(x, 240, text, color=GREY)


def _branch(
    board: _Board, start: tuple[float, float], end: tuple[float, float], label: str, kept: bool, width: float = 110
) -> None:
    board.box(*end, label, FEED if kept else _PALE, width, ec=DARK if kept else "#bbbbbb")
    style = {"color": DARK, "lw": 1.6} if kept else {"color": "#bbbbbb"}
    board.line(start, (end[0] - width / 2, end[1]), **style)


def draw_cache(picture: Path) -> None:
    """Draw whose keys and values each step of a decoder computes, without a cache and with one."""
    source, target = ("京都", "は", "古都", EOS), (BOS, "Kyoto", "is", "old")
    with _board(picture, 830, 236) as board:
        for left, title, cached in ((84, "without a cache", False), (484, "with a cache", True)):
            board.text(left + 170, 222, title, size=10)
            for j, token in enumerate((*source, *target)):
                board.text(left + 40 * j + (36 if j >= 4 else 20), 196, token, size=8)
            for step in range(4):
                y = 182 - 34 * step
                if left < 100:
                    board.text(14, y - 15, f"step {step + 1}", ha="left")
                for part, n, new in ((0, 4, step == 0), (176, step + 1, False)):
                    colours = [_ORANGE if not cached or new or (part and j == step) else "#bcd7ea" for j in range(n)]
                    for j, colour in enumerate(colours):
                        board.rectangle(left + part + 40 * j + 20, y - 15, 36, 26, colour, ec="none")
        for x, colour, text in ((180, _ORANGE, "computed in this step"), (480, "#bcd7ea", "kept from an earlier one")):
            board.rectangle(x, 22, 22, 16, colour, ec="none")
            board.text(x + 20, 22, text, ha="left")


_READ = "道長はその娘を天皇に嫁がせ、彼女は皇子を産んだ。"
_WRITTEN = "Michinaga married his daughter to the Emperor, and she gave birth to a prince."
_HEADS: tuple[tuple[Kind, int, int], ...] = (
    ("encoder", 6, 1),
    ("encoder", 5, 4),
    ("decoder", 2, 1),
)  # and their layers


def draw_self_attention(picture: Path) -> None:
    """Draw three heads of self-attention of the translator that comes with the project, in a real sentence."""
    run = load_run(PICKLES / "kftt_ja_en", torch.device("cpu"))
    src, tgt = run.tokenizers
    (source,), (target,) = src.encode([_READ]), tgt.encode([_WRITTEN])
    weights = attention_weights(run.model, source, target)
    seen = AttentionMap([*src.tokens(source), EOS], [*tgt.tokens(target), EOS], weights)
    with sheet(picture, (15, 5.2), columns=len(_HEADS), dpi=80) as panels:
        for axes, (kind, layer, head) in zip(panels, _HEADS, strict=True):
            shown = weights[kind][layer - 1][head - 1], seen.columns(kind), seen.rows(kind)
            heat_map(axes, *shown, f"{kind}, layer {layer}, head {head}")
