"""Attention of a translator or a BERT: heat maps and an interactive page, of every head or of one attention's mean."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from const.token import EOS
from utils.command import columns_of, page_template
from utils.file import write_text
from utils.load import Run
from utils.search.forced import (
    KINDS,
    AttentionMap,
    attention_entropy,
    attention_weights,
    largest_entropy,
    most_attended,
)
from utils.search.translator import Translator
from utils.text.tokenizer import Tokenizer
from utils.visualize.curve import drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

_DPI = 110
_INCHES_PER_TOKEN = 0.27

# for the picture with all heads; in inches unless noted otherwise
_MAX_TOKEN, _MIN_TOKEN = 0.2, 0.1  # size of a token, in a short sentence and in one of 60 tokens
_MAX_AREA = 4500  # square inches of all maps together
_MIN_POINTS, _MAX_POINTS = 4, 9  # font size; below the minimum, labels are illegible and left out
_GAP, _TITLE, _HEADING, _SCALE = 0.14, 0.24, 0.45, 0.75
_MIN_WIDTH = 6.5  # room for the note at the top


def draw_cross_attention(
    weights: Sequence[Float[Tensor, "H T S"]], src_tokens: Sequence[str], tgt_tokens: Sequence[str], picture: Path
) -> None:
    """Draw the weights of each layer as a heat map, averaged over heads, source across, target down."""
    layers = torch.stack([*weights]).mean(1)
    n, rows, columns = layers.shape
    size = (1.5 + n * (1 + columns * _INCHES_PER_TOKEN), 1.6 + rows * _INCHES_PER_TOKEN)
    with drawing(picture, size, _DPI) as figure:
        axes = figure.subplots(1, n, squeeze=False, sharey=True)
        for i, (ax, weight) in enumerate(zip(axes[0], layers, strict=True)):
            image = heat_map(ax, weight, src_tokens, tgt_tokens, f"decoder layer {i + 1}")
        figure.colorbar(image, ax=axes[0], shrink=0.7, label="weight, mean over heads")


def draw_attention(attention: AttentionMap, picture: Path) -> None:
    """Draw a map for each head, a row of maps for each layer, from the source upwards, as a PNG."""
    layers = [(kind, i, heads) for kind, stack in attention.weights.items() for i, heads in enumerate(stack, start=1)]
    unit = _inches_per_token(attention)
    points = 72 * unit * 0.82
    points = min(_MAX_POINTS, points) if points >= _MIN_POINTS else 0
    tokens = [*attention.src_tokens, *attention.tgt_tokens]
    labels = max(sum(map(_ems, token)) for token in tokens) * points / 72 + 0.2  # room for the longest token
    map_width = max(0.9, max(len(attention.columns(kind)) for kind in attention.weights) * unit)  # or room for a title
    width = max(_MIN_WIDTH, labels + max(len(heads) for *_, heads in layers) * (map_width + _GAP))
    between = _HEADING + _TITLE + labels
    height = _SCALE + sum(between + unit * len(attention.rows(kind)) for kind, *_ in layers)
    top = height - _SCALE
    with drawing(picture, (width, height), _DPI, layout=None) as figure:
        for kind, i, heads in layers:
            rows, columns = attention.rows(kind), attention.columns(kind)
            figure.text(0.1 / width, (top - 0.25) / height, f"{KINDS[kind]}, layer {i}", fontsize=11, va="center")
            top -= between + unit * len(rows)
            for j, (weight, entropy) in enumerate(zip(heads, attention_entropy(heads).tolist(), strict=True)):
                left, bottom = labels + j * (map_width + _GAP), top + labels
                ax = figure.add_axes((left / width, bottom / height, map_width / width, unit * len(rows) / height))
                image = heat_map(ax, weight, columns, rows, f"head {j + 1}: {entropy:.2f}", points)
                ax.tick_params(labelleft=j == 0 and points > 0, labelbottom=points > 0)
        scale = figure.add_axes((0.45 / width, (height - 0.25) / height, 2 / width, 0.12 / height))
        figure.colorbar(image, cax=scale, orientation="horizontal").ax.tick_params(labelsize=8)
        note = "weight of the column's token for the row's\n(above each map: mean entropy of its rows, in nats)"
        figure.text(2.65 / width, (height - 0.22) / height, note, fontsize=9, va="center")


def _inches_per_token(attention: AttentionMap) -> float:
    """Return the size of a token: smaller in long sentences, so that all maps fit into the picture."""
    length = max(len(attention.src_tokens), len(attention.tgt_tokens))
    cells = sum(weights.numel() for layers in attention.weights.values() for weights in layers)
    return min(_MAX_TOKEN, max(_MIN_TOKEN, 0.067 + 2 / length), math.sqrt(_MAX_AREA / cells))


def _ems(letter: str) -> float:
    """Estimate the width of a letter, in units of the font size."""
    if letter in "mwMW@%":
        return 1.0
    return 0.8 if letter.isupper() else 0.58 * columns_of(letter)


def heat_map(
    ax: "Axes",
    weight: Float[Tensor, "T S"],
    src_tokens: Sequence[str],
    tgt_tokens: Sequence[str],
    title: str,
    points: float = 9,
) -> "AxesImage":
    """Draw the weights of one head: source tokens across, target tokens down, labels of this many points (0: none)."""
    image = ax.imshow(weight.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    ax.set_title(title, fontsize=10)
    # Matplotlib reads text between two $ as mathematics
    across, down = ([token.replace("$", r"\$") for token in tokens] for tokens in (src_tokens, tgt_tokens))
    ax.set_xticks(range(len(across)), across, rotation=90, fontsize=points or None)
    ax.set_yticks(range(len(down)), down, fontsize=points or None)
    ax.tick_params(length=0)
    return image


PARTS = 1000  # units of a weight of 1: the resolution of the page


class Pair(NamedTuple):
    """A text and its translation, or how it is filled in, with their language codes, and the name of the run."""

    source: str
    target: str
    src_lang: str
    tgt_lang: str
    run: str


def write_page(template: str, data: dict[str, object], pair: Pair, path: Path) -> None:
    """Write what a template of this folder makes of data: a file that needs no network, for screens of any width."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    # escaped so that it cannot end its element or begin another
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    write_text(path, page_template(Path(__file__).with_name(template)).render(pair=pair, data=text))


def _data(attention: AttentionMap, pair: Pair) -> dict[str, object]:
    """Return the data that the page shows."""
    kinds = []
    for kind, layers in attention.weights.items():
        rows, columns = attention.rows(kind), attention.columns(kind)
        kinds.append(
            {
                "kind": kind,
                "rows": {"tokens": rows, "lang": pair.src_lang if kind == "encoder" else pair.tgt_lang},
                "columns": {"tokens": columns, "lang": pair.tgt_lang if kind == "decoder" else pair.src_lang},
                "weights": [(weights * PARTS).round().int().tolist() for weights in layers],
                "entropy": [[round(nats, 3) for nats in attention_entropy(weights).tolist()] for weights in layers],
                "max_entropy": round(largest_entropy(kind, len(rows), len(columns)), 3),
            }
        )
    last = [weights.mean(0)[:-1, :-1] for weights in attention.weights.get("cross", [])[-1:]]
    return {
        "parts": PARTS,
        "kinds": kinds,
        "source": {"tokens": attention.src_tokens[:-1], "lang": pair.src_lang},
        "target": {"tokens": attention.tgt_tokens[:-1], "lang": pair.tgt_lang},
        "links": [[s, t, round(weights[t, s].item(), 3)] for weights in last for s, t in most_attended(weights)],
    }


def show_attention(
    run: Run, translator: Translator, text: str, path: Path, given: str | None = None, prefix: str = ""
) -> None:
    """Draw where every head of every layer looks while a text, short enough for that, is translated at once.

    Args:
        path: where to draw: a page to explore (.html) or a picture (.png).
        given: a translation to look at; None: the best that the translator finds.
        prefix: how the translation that is searched for begins.
    """
    src, tgt = run.tokenizers
    if given is None:
        source, target, given = translated_at_once(run, translator, text, prefix)
    else:
        source = _ids(src, text, run.window, "reads at a time", "sentence")
        target = _ids(tgt, given, run.config.model.max_length, "writes", "translation")
    weights = attention_weights(run.model, source, target)
    attention = AttentionMap([*src.tokens(source), EOS], [*tgt.tokens(target), EOS], weights)
    show_map(attention, Pair(text, given, *run.config.data.languages, run.folder.resolve().name), path)


def show_map(attention: AttentionMap, pair: Pair, path: Path) -> None:
    """Draw every head: a page to explore (.html) or a picture (.png)."""
    if path.suffix == ".png":
        draw_attention(attention, path)
    else:
        write_page("attention.html", _data(attention, pair), pair, path)


def translated_at_once(
    run: Run, translator: Translator, text: str, prefix: str = ""
) -> tuple[list[int], list[int], str]:
    """Return the ids of a text and of its best translation, and that translation; refuse a text of several pieces."""
    _ids(run.tokenizers.src, text, run.window, "reads at a time", "sentence")
    (translation,) = translator.translate([text], prefixes=[prefix] if prefix else None, first=1)
    sentences = [piece for piece in translation.pieces if piece.source]
    if not any(piece.ids for piece in sentences):
        raise ValueError(f"{text!r} has no word that is in the vocabulary: give a sentence that the run can read")
    if len(sentences) > 1:
        raise ValueError(f"{text!r} is translated in {len(sentences)} sentences: give one of them")
    return sentences[0].ids, translation.candidates[0].ids, translation.text


def _ids(tokenizer: Tokenizer, text: str, max_length: int, does: str, sort: str) -> list[int]:
    """Return the ids of a text that is neither empty nor, with </s>, longer than the network can take."""
    (ids,) = tokenizer.encode([text])
    if not ids:
        raise ValueError(f"{text!r} has no token: give a {sort}")
    if len(ids) + 1 > max_length:
        n = f"{len(ids) + 1} tokens, </s> included, are more"
        raise ValueError(f"{n} than the {max_length} that a run {does}: shorten it")
    return ids
