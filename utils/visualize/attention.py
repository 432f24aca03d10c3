"""Attention of a translator: heat maps, an interactive page, and `python -m utils.visualize.attention SENTENCE ...`."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from torch import Tensor

from const.token import EOS
from models.transformer import Transformer
from utils.command import Parser, columns_of, page_template, run_command
from utils.device import pick_device
from utils.file import require_file, write_text
from utils.run import Run, find_run, load_run
from utils.search.inspection import (
    KINDS,
    AttentionMap,
    Kind,
    attention_entropy,
    attention_weights,
    largest_entropy,
    most_attended,
)
from utils.search.translator import Translator
from utils.terminal.option import refuse_other_pictures
from utils.text.tokenizer import id_of_each
from utils.visualize.curve import drawing

# Heat maps of a translator's attention.

_INCHES_PER_TOKEN = 0.27
_HEADS_ABREAST = 4
_DPI = 110

# for the picture with all heads of all layers; in inches unless noted otherwise
_WIDEST, _NARROWEST = 0.2, 0.1  # size of a token, in a short sentence and in one of 60 tokens
_MOST = 4500  # square inches of all maps together
_LEAST_POINTS, _MOST_POINTS = 4, 9  # font size; below the least, labels are illegible and left out
_GAP, _TITLE, _HEADING, _SCALE = 0.14, 0.24, 0.55, 0.75
_LEAST_WIDTH = 6.5  # room for the note at the top


class Attended(NamedTuple):
    """Weights of one attention, with the tokens of its rows and columns."""

    weights: Float[Tensor, "H T S"]
    src_tokens: Sequence[str]
    tgt_tokens: Sequence[str]


def cross_attention(model: Transformer, src: Sequence[int], tgt: Sequence[int]) -> Tensor:
    """Return the cross-attention weights (layers, H, T, S) for a pair of id sequences.

    Row t belongs to the prediction of target token t (the last: </s>), column s to source token s (the last: </s>).
    """
    return torch.stack(attention_weights(model, src, tgt)["cross"])


def draw_cross_attention(weights: Tensor, src_tokens: Sequence[str], tgt_tokens: Sequence[str], picture: Path) -> None:
    """Draw weights (layers, H, T, S) as one heat map per layer, averaged over heads, source across, target down."""
    layers = weights.mean(1)
    n, rows, columns = layers.shape
    size = (1.5 + n * (1 + columns * _INCHES_PER_TOKEN), 1.6 + rows * _INCHES_PER_TOKEN)
    with drawing(picture, size, _DPI) as figure:
        axes = figure.subplots(1, n, squeeze=False, sharey=True)
        for i, (ax, weight) in enumerate(zip(axes[0], layers, strict=True)):
            image = _heat_map(ax, weight, src_tokens, tgt_tokens, f"decoder layer {i + 1}")
        figure.colorbar(image, ax=axes[0], shrink=0.7, label="weight, mean over heads")


def draw_heads(sentences: Sequence[Attended], picture: Path) -> None:
    """Draw every head separately, grouped by sentence, with the sentences one below the other.

    Args:
        sentences: weights with source across and target down; all with the same number of heads.
        picture: PNG file to write.
    """
    n_heads = len(sentences[0].weights)
    columns = min(n_heads, _HEADS_ABREAST)
    rows = -(-n_heads // columns)
    # sizes follow sentence lengths, with some room for map titles and the labels around the grid
    longest = max(len(sentence.src_tokens) for sentence in sentences)
    width = 2.5 + columns * (0.3 + longest * _INCHES_PER_TOKEN)
    heights = [1.3 + rows * (0.3 + len(sentence.tgt_tokens) * _INCHES_PER_TOKEN) for sentence in sentences]
    with drawing(picture, (width, sum(heights)), _DPI) as figure:
        places = figure.add_gridspec(len(sentences), longest, height_ratios=heights)
        for row, sentence in enumerate(sentences):
            # a short sentence above or below a much longer one still needs room for its labels
            part = figure.add_subfigure(places[row, : max(len(sentence.src_tokens), longest // 3)])
            _draw_sentence(part, sentence, rows, columns)


def _draw_sentence(part: SubFigure, sentence: Attended, rows: int, columns: int) -> None:
    """Draw the heads of a sentence."""
    n_heads = len(sentence.weights)
    axes = part.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for i, ax in enumerate(axes.flat):
        if i < n_heads:
            image = _heat_map(ax, sentence.weights[i], sentence.src_tokens, sentence.tgt_tokens, f"head {i + 1}")
            ax.tick_params(labelbottom=i + columns >= n_heads)  # if there is no map below it
        else:
            ax.set_axis_off()
    part.colorbar(image, ax=axes[0], fraction=0.05, label="weight")


class _Block(NamedTuple):
    """The maps of one kind, a row of maps for each layer."""

    kind: Kind
    layers: list[Tensor]
    rows: list[str]
    columns: list[str]
    unit: float  # inches per token
    points: float  # font size of tokens; 0: no labels

    @property
    def map_width(self) -> float:
        """Width of a map, with enough room for its title."""
        return max(0.9, len(self.columns) * self.unit)

    @property
    def map_height(self) -> float:
        return len(self.rows) * self.unit

    @property
    def left(self) -> float:
        """Space taken by layer names and row labels."""
        return 0.45 + _length(self.rows, self.points)

    @property
    def width(self) -> float:
        return self.left + max(len(heads) for heads in self.layers) * (self.map_width + _GAP)

    @property
    def layer_height(self) -> float:
        return _TITLE + self.map_height + _length(self.columns, self.points) + _GAP

    @property
    def height(self) -> float:
        return _HEADING + len(self.layers) * self.layer_height


def draw_attention(found: AttentionMap, picture: Path) -> None:
    """Draw every head of every layer with its entropy in nats, the three kinds one below the other.

    Args:
        found: attention maps, whose rows attend to columns.
        picture: PNG file to write.
    """
    unit = _inches_per_token(found)
    points = min(_MOST_POINTS, 72 * unit * 0.82)
    if points < _LEAST_POINTS:
        points = 0
    blocks = [
        _Block(kind, layers, found.rows(kind), found.columns(kind), unit, points)
        for kind, layers in found.weights.items()
    ]
    width = max(_LEAST_WIDTH, *(block.width + _GAP for block in blocks))
    height = _SCALE + sum(block.height for block in blocks)
    top = height - _SCALE
    with drawing(picture, (width, height), _DPI, layout=None) as figure:
        for block in blocks:
            image = _draw_block(figure, block, top)
            top -= block.height
        scale = figure.add_axes((0.45 / width, (height - 0.25) / height, 2 / width, 0.12 / height))
        figure.colorbar(image, cax=scale, orientation="horizontal").ax.tick_params(labelsize=8)
        note = "weight of the column's token for the row's\n(above each map: mean entropy of its rows, in nats)"
        figure.text(2.65 / width, (height - 0.22) / height, note, fontsize=9, va="center")


def _draw_block(figure: Figure, block: _Block, top: float) -> AxesImage:
    """Draw the maps of one kind below `top`, in inches from the bottom."""
    width, height = figure.get_size_inches()
    figure.text(0.1 / width, (top - 0.3) / height, KINDS[block.kind], fontsize=14, va="center")
    for i, heads in enumerate(block.layers):
        bottom = top - _HEADING - i * block.layer_height - _TITLE - block.map_height
        middle = (bottom + block.map_height / 2) / height
        figure.text(0.22 / width, middle, f"layer {i + 1}", fontsize=10, rotation=90, ha="center", va="center")
        for j, (weight, entropy) in enumerate(zip(heads, attention_entropy(heads).tolist(), strict=True)):
            left = block.left + j * (block.map_width + _GAP)
            ax = figure.add_axes((left / width, bottom / height, block.map_width / width, block.map_height / height))
            image = _heat_map(ax, weight, block.columns, block.rows, f"head {j + 1}: {entropy:.2f}", block.points)
            ax.tick_params(labelleft=j == 0 and block.points > 0, labelbottom=block.points > 0)
    return image


def _inches_per_token(found: AttentionMap) -> float:
    """Return the size of a token: smaller in long sentences, so that all maps fit into the picture."""
    longest = max(len(found.src_tokens), len(found.tgt_tokens))
    cells = sum(weights.numel() for layers in found.weights.values() for weights in layers)
    return min(_WIDEST, max(_NARROWEST, 0.067 + 2 / longest), math.sqrt(_MOST / cells))


def _length(tokens: Sequence[str], points: float) -> float:
    """Return the length in inches of the longest token in this font size, with the space before it."""
    return max(sum(map(_ems, token)) for token in tokens) * points / 72 + 0.1


def _ems(letter: str) -> float:
    """Estimate the width of a letter, in units of the font size."""
    if letter in "mwMW@%":
        return 1.0
    return 0.8 if letter.isupper() else 0.58 * columns_of(letter)


def _heat_map(
    ax: Axes,
    weight: Float[Tensor, "T S"],
    src_tokens: Sequence[str],
    tgt_tokens: Sequence[str],
    title: str,
    points: float = 9,
) -> AxesImage:
    image = ax.imshow(weight.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    ax.set_title(title, fontsize=10)
    across, down = ([token.replace("$", r"\$") for token in tokens] for tokens in (src_tokens, tgt_tokens))
    ax.set_xticks(
        range(len(across)), across, rotation=90, fontsize=points or None
    )  # Matplotlib reads text between two $ as mathematics
    ax.set_yticks(range(len(down)), down, fontsize=points or None)
    ax.tick_params(length=0)
    return image


# A translator's attention as an interactive HTML page: every layer, every head, every token.

_PARTS = 1000  # units of a weight of 1: the resolution of the page


class Pair(NamedTuple):
    """A text and its translation with their language codes, and the name of the run."""

    source: str
    target: str
    src_lang: str
    tgt_lang: str
    run: str


def write_attention_page(found: AttentionMap, pair: Pair, path: Path) -> None:
    """Write one self-contained file that needs no network, for light or dark screens of any width."""
    page = page_template(Path(__file__).with_name("attention_page.html")).render(
        pair=pair, data=_embedded(_data(found, pair))
    )
    write_text(path, page)


def _embedded(data: object) -> str:
    """Return JSON for an HTML element, escaped so that it cannot end the element or begin another."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(found: AttentionMap, pair: Pair) -> dict[str, object]:
    """Return the data that the page shows."""
    kinds = []
    for kind, layers in found.weights.items():
        rows, columns = found.rows(kind), found.columns(kind)
        kinds.append(
            {
                "kind": kind,
                "name": KINDS[kind],
                "rows": {"tokens": rows, "lang": pair.src_lang if kind == "encoder" else pair.tgt_lang},
                "columns": {"tokens": columns, "lang": pair.tgt_lang if kind == "decoder" else pair.src_lang},
                "weights": [(weights * _PARTS).round().int().tolist() for weights in layers],
                "entropy": [[round(nats, 3) for nats in attention_entropy(weights).tolist()] for weights in layers],
                "most": round(largest_entropy(kind, len(rows), len(columns)), 3),
            }
        )
    last = found.weights["cross"][-1].mean(0)[:-1, :-1]
    return {
        "parts": _PARTS,
        "kinds": kinds,
        "source": {"tokens": found.src_tokens[:-1], "lang": pair.src_lang},
        "target": {"tokens": found.tgt_tokens[:-1], "lang": pair.tgt_lang},
        "links": [[s, t, round(last[t, s].item(), 3)] for s, t in most_attended(last)],
    }


# Where each head looks: `python -m utils.visualize.attention SENTENCE ... --picture FILE [--run RUN]`.


def last_cross_attention(run: Run, sentences: Sequence[str]) -> list[Attended]:
    """Translate sentences, and return what the heads of the last decoder block attended to for each token.

    Args:
        run: the translator.
        sentences: each short enough to be translated at once.

    Raises:
        ValueError: when a sentence is empty or longer than the run's window.
    """
    src, tgt = run.tokenizers
    sources = _sources(run, sentences)
    found = []
    for ids, (best, *_) in zip(sources, run.translator().search_ids(sources), strict=True):
        weights = cross_attention(run.model, ids, best.ids)[-1]
        found.append(Attended(weights, [*src.tokens(ids), EOS], [*tgt.tokens(best.ids), EOS]))
    return found


def show_attention(
    run: Run, translator: Translator, text: str, path: Path, given: str | None = None, prefix: str = ""
) -> None:
    """Draw where every head of every layer looks while a translation is generated.

    Args:
        run: the run whose heads are shown.
        translator: finds the translation with it.
        text: short enough to be translated at once.
        path: where to draw: a page to explore (.html) or a picture (.png).
        given: a translation to look at; None: the best that the translator finds.
        prefix: how the translation that is searched for begins.

    Raises:
        ValueError: when the text is empty or too long, or the path is of another kind.
    """
    refuse_other_pictures(path)
    src, tgt = run.tokenizers
    (source,) = _sources(run, [text])
    if given is None:
        (translation,) = translator.translate([text], prefixes=[prefix] if prefix else None, first=1)
        if not translation.n_pieces:
            raise ValueError(f"no part of {text!r} is in the vocabulary: give a sentence that the run can read")
        given, places = translation.text, id_of_each(tgt)
        target = [places[token] for token in translation.candidates[0].tokens]
    else:
        target = _given_target(run, given)
    found = AttentionMap(
        [*src.tokens(source), EOS], [*tgt.tokens(target), EOS], attention_weights(run.model, source, target)
    )
    if path.suffix == ".png":
        draw_attention(found, path)
    else:
        languages = run.config.data.src_lang, run.config.data.tgt_lang
        write_attention_page(found, Pair(text, given, *languages, run.folder.resolve().name), path)


def _sources(run: Run, sentences: Sequence[str]) -> list[list[int]]:
    sources = run.tokenizers.src.encode(sentences)
    for text, ids in zip(sentences, sources, strict=True):
        if not ids:
            raise ValueError(f"{text!r} has no token: give a sentence")
        if len(ids) + 1 > run.window:
            raise ValueError(
                f"{len(ids) + 1} tokens, </s> included, are more than the {run.window} that {run.folder} reads at a "
                f"time: shorten {text!r}"
            )
    return sources


def _given_target(run: Run, given: str) -> list[int]:
    (target,) = run.tokenizers.tgt.encode([given])
    longest = run.config.model.max_length
    if not target:
        raise ValueError(f"{given!r} has no token: give a translation")
    if len(target) + 1 > longest:
        raise ValueError(
            f"{len(target) + 1} tokens, </s> included, are more than the {longest} that {run.folder} writes: "
            f"shorten {given!r}"
        )
    return target


def build_parser() -> Parser:
    """Build the parser: sentences, the run, and where to draw."""
    parser = Parser(
        prog="utils.visualize.attention",
        usage="python -m utils.visualize.attention SENTENCE [SENTENCE ...] --picture FILE [--run RUN]",
        description="Translate sentences and draw each head of the last decoder block's cross-attention.",
    )
    parser.add_argument("sentences", nargs="+", type=str, metavar="SENTENCE", help="what to translate")
    parser.add_argument("--picture", type=Path, required=True, metavar="FILE", help="where to draw, as PNG")
    parser.add_argument("--run", type=Path, help="folder or name of a run (default: the one trained last)")
    return parser


def main() -> None:
    """Draw the heads.

    Raises:
        ValueError: when there is no such run, or it cannot translate a sentence at once.
    """
    arguments = build_parser().parse_args()
    require_file(arguments.picture)
    run = load_run(find_run(arguments.run), pick_device("auto"))
    draw_heads(last_cross_attention(run, arguments.sentences), arguments.picture)


if __name__ == "__main__":
    run_command("attention_heads", main)
