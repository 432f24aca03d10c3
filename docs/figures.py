"""The pictures of docs/: `python -m docs.figures`, or `make figures`."""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple, get_args, get_type_hints

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from matplotlib.ticker import ScalarFormatter
from torch import Tensor, nn

from const.path import FIGURE, PICKLES
from const.token import BOS, EOS, PAD, PAD_ID, UNK_ID
from layers.encoder_block import EncoderBlock
from layers.feed_forward import ACTIVATION, FeedForward
from layers.mask import causal_mask, padding_mask
from layers.multi_head_attention import MultiHeadAttention
from layers.positional_encoding import sinusoid
from layers.scaled_dot_product_attention import ScaledDotProductAttention
from models.weight import initialise
from utils.command import Parser, run_command
from utils.dataset.ids import TokenArray
from utils.dataset.masked import MaskedEpoch, MaskingConfig
from utils.dataset.monolingual import Document, DocumentTokens
from utils.search.constraint import SearchConfig
from utils.text.tokenizer import WordTokenizer
from utils.training.checkpoint import read_weights
from utils.training.loss import projected_cross_entropy
from utils.training.plan import OptimizerConfig, learning_rate
from utils.training.report import LOG
from utils.visualize.curve import draw_curves, sheet

# The activations of `layers.feed_forward`, and their derivatives.

_REACH = 4.0


def draw_activations(picture: Path) -> None:
    """Draw f(x) and f'(x) of each available activation."""
    with sheet(picture, (9, 3.8), columns=2) as (value, slope):
        for name, activation in ACTIVATION.items():
            x = torch.linspace(-_REACH, _REACH, 401, dtype=torch.float64, requires_grad=True)
            y = activation(x)
            (dy,) = torch.autograd.grad(y.sum(), x)
            value.plot(x.detach().numpy(), y.detach().numpy(), label=name)
            slope.plot(x.detach().numpy(), dy.numpy(), label=name)
        value.set(title="f(x)", xlabel="x", ylim=(-0.6, _REACH))
        slope.set(title="f′(x)", xlabel="x")
        for axes in (value, slope):
            axes.axhline(0, color="gray", lw=0.8)
            axes.grid(alpha=0.3)
            axes.legend(frameon=False)


# The effect of label smoothing on the loss: full certainty costs more than a little doubt.

_VOCAB = 100
_SMOOTHINGS = (0.0, 0.1, 0.2)


def smoothed_losses(probabilities: Sequence[float], smoothing: float) -> Float[Tensor, " N"]:
    """Return the loss in nats of a token predicted with each probability; other tokens share the rest equally."""
    p = torch.tensor(probabilities)
    logits = ((1 - p) / (_VOCAB - 1)).log()[:, None].repeat(1, _VOCAB)
    logits[:, 0] = p.log()
    right, weight = torch.zeros(1, dtype=torch.long), torch.eye(_VOCAB)
    return torch.stack([projected_cross_entropy(row[None], weight, None, right, smoothing) for row in logits])


def draw_label_smoothing(picture: Path) -> None:
    """Draw the loss against the probability of the right token, with a line for each ε and its minimum marked."""
    p = torch.linspace(0.02, 0.998, 490).tolist()
    with sheet(picture, (6.5, 3.8)) as (axes,):
        for smoothing in _SMOOTHINGS:
            losses = smoothed_losses(p, smoothing)
            (line,) = axes.plot(p, losses.numpy(), label=f"ε = {smoothing:g}")
            if smoothing:
                least = int(losses.argmin())
                axes.plot(p[least], losses[least].item(), "o", color=line.get_color())
        axes.set(xlabel="probability of the right token", ylabel="nats per target token", ylim=(0, 4))
        axes.set_title(f"Label smoothing, {_VOCAB} tokens; dots: the least loss")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)


# The learning rate schedules of `utils.training.plan`.

_STEPS, _WARMUP = 6000, 1000


def draw_learning_rates(picture: Path) -> None:
    """Draw all schedules over the updates."""
    steps = np.unique(np.linspace(1, _STEPS, 600).round().astype(int))
    with sheet(picture, (6, 3.8)) as (axes,):
        for schedule in get_args(get_type_hints(OptimizerConfig)["schedule"]):
            given = OptimizerConfig(schedule=schedule, peak_lr=1e-3, warmup_steps=_WARMUP)
            config = given.ending_at(_STEPS)
            axes.plot(steps, [learning_rate(int(step), config) for step in steps], label=schedule)
        axes.set(
            title=f"peak_lr 0.001, warmup_steps {_WARMUP}", ylim=(0, 0.0013), xlabel="update", ylabel="learning rate"
        )
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="upper right", ncols=2)


# The effect of the length penalty on scores: `SearchConfig.penalty`.

_SETTINGS = (
    SearchConfig(length_penalty=0.0),
    SearchConfig(length_penalty=0.6),
    SearchConfig(length_penalty=1.0),
    SearchConfig(length_penalty=1.0, normalization="length"),
)
_NATS = 0.5  # cost of each token of a translation


def draw_length_penalty(picture: Path) -> None:
    """Draw the divisor, and the score of translations of equally likely tokens, against their length."""
    lengths = range(1, 51)
    with sheet(picture, (10, 3.8), columns=2) as (divisor, score):
        for config in _SETTINGS:
            label = f"α = {config.length_penalty:g}"
            label += f", {config.normalization}" if config.length_penalty else ""
            penalties = [config.penalty(n) for n in lengths]
            divisor.plot(lengths, penalties, label=label)
            score.plot(lengths, [-_NATS * n / penalty for n, penalty in zip(lengths, penalties, strict=True)])
        divisor.set(title="Divided by", ylim=(0, 15))
        score.set(title=f"Score of tokens that cost {_NATS} nats each", ylim=(-16, 0.5))
        for axes in (divisor, score):
            axes.set(xlabel="tokens of a translation, </s> included")
            axes.grid(alpha=0.3)
        divisor.legend(frameon=False)


# The attention masks of `layers.mask`, with the tokens of rows and columns.

_MASK_COLORS = ListedColormap(["#e8e8e8", "#4a90c2"])  # False, True


def draw_masks(sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], picture: Path) -> None:
    """Draw the padding mask of a batch, and the masks of its last pair in the three attentions of a translator.

    Args:
        sources: tokens with a final </s>, all padded to one length with <pad>.
        targets: tokens with an initial <s>, padded likewise.
        picture: file to write.
    """
    padding = padding_mask(torch.tensor([[PAD_ID if t == PAD else UNK_ID for t in row] for row in sources]), PAD_ID)
    src, tgt = sources[-1], targets[-1]
    last = padding[-1, 0]
    with sheet(picture, (10, 7.6), rows=2, columns=2) as (batch, encoder, decoder, cross):
        _cells(batch, padding[:, 0, 0], [f"sentence {i + 1}" for i in range(len(sources))], range(len(src)))
        for row, tokens in enumerate(sources):
            for column, token in enumerate(tokens):
                color = "white" if padding[row, 0, 0, column] else "#888888"
                batch.text(column, row, token, ha="center", va="center", fontsize=9, color=color)
        batch.set(title="padding_mask of a batch", xlabel="position of the source")
        _cells(encoder, last.expand(len(src), -1), src, src)
        encoder.set(title=f"sentence {len(sources)} in the encoder: padding_mask")
        _cells(decoder, causal_mask(len(tgt), len(tgt)), tgt, tgt)
        decoder.set(title="in the decoder: causal_mask", ylabel="query")
        _cells(cross, last.expand(len(tgt), -1), tgt, src)
        cross.set(title="from decoder to encoder: padding_mask")
        for axes in (encoder, decoder, cross):
            axes.set(xlabel="key", ylabel="query")


def memory_mask(memory: Sequence[int], segment: Sequence[int]) -> Bool[Tensor, "T S"]:
    """Return which positions a segment may attend to in Transformer-XL.

    Args:
        memory: document number of each remembered position.
        segment: document number of each position of the segment.
    """
    documents = torch.tensor([*memory, *segment])
    same = documents[len(memory) :, None] == documents
    return causal_mask(len(segment), len(documents)) & same


def draw_memory_mask(memory: Sequence[str], segment: Sequence[str], n_old: int, picture: Path) -> None:
    """Draw the mask of a segment in two cases: it continues the memory's document, or a new document begins within it.

    Args:
        memory: remembered tokens.
        segment: tokens of the segment.
        n_old: number of them that belong to the memory's document in the second case.
        picture: file to write.
    """
    inches = (1.5 + 0.42 * (len(memory) + len(segment)), 6.2)
    with sheet(picture, inches, rows=2) as (one, two):
        for axes, n_same, title in (
            (one, len(segment), "one document"),
            (two, n_old, f"a new document begins with “{segment[n_old]}”"),
        ):
            documents = [0] * n_same + [1] * (len(segment) - n_same)
            _cells(axes, memory_mask([0] * len(memory), documents), segment, [*memory, *segment])
            axes.axvline(len(memory) - 0.5, color="black", lw=1.5)
            axes.set(title=title, xlabel="key: memory | segment", ylabel="query")


def _cells(axes: Axes, mask: Bool[Tensor, "R C"], rows: Sequence[object], columns: Sequence[object]) -> None:
    """Draw a cell for each pair of query and key: dark where attention is allowed."""
    axes.imshow(mask.numpy(), cmap=_MASK_COLORS, vmin=0, vmax=1)
    labels = [str(name) for name in columns]
    axes.set_xticks(range(len(labels)), labels, rotation=90 if max(map(len, labels)) > 2 else 0)
    axes.set_yticks(range(len(rows)), [str(name) for name in rows])
    axes.set_xticks([i - 0.5 for i in range(1, len(labels))], minor=True)
    axes.set_yticks([i - 0.5 for i in range(1, len(rows))], minor=True)
    axes.grid(which="minor", color="white", lw=1.5)
    axes.tick_params(which="both", length=0)


# The input of a masked language model for one sentence in successive epochs (Devlin et al. 2019, 3.1).

MASK = "[MASK]"


class Fate(IntEnum):
    """What happens to a token."""

    READ = 0
    HIDDEN = 1
    REPLACED = 2
    KEPT = 3


_FATE_COLORS = {Fate.READ: "#f2f2f2", Fate.HIDDEN: "#4a90c2", Fate.REPLACED: "#e0853c", Fate.KEPT: "#6bb36b"}
_NAMES = {
    Fate.READ: "read, not predicted",
    Fate.HIDDEN: "predicted: masked",
    Fate.REPLACED: "predicted: replaced by another token",
    Fate.KEPT: "predicted: left unchanged",
}


class Example(NamedTuple):
    """One sentence as read in one epoch."""

    tokens: list[str]
    fates: list[Fate]


def masked_examples(sentences: Sequence[str], n_epochs: int, config: MaskingConfig, seed: int = 1) -> list[Example]:
    """Return the first sentence as read in each epoch.

    Args:
        sentences: words separated by spaces; the other sentences only add to the vocabulary.
        n_epochs: number of epochs.
        config: settings without next-sentence prediction.
        seed: random seed of the masking.
    """
    tokenizer = WordTokenizer.train(sentences, min_freq=1, lowercase=False)
    lines = TokenArray.of(tokenizer.encode(sentences), len(tokenizer))
    text = DocumentTokens.of(lines, [Document("all", len(sentences))])
    examples = []
    for n in range(n_epochs):
        epoch = MaskedEpoch(text, tokenizer, config, 1, None, 1, (seed, n))  # a batch for each sentence
        (batch,) = (batch for i, batch in enumerate(epoch) if epoch.rows(i).tolist() == [0])
        read, right = batch.ids[0].tolist(), batch.target[0].tolist()
        mask_id = len(tokenizer)
        fates = [_fate(i, target, mask_id) for i, target in zip(read, right, strict=True)]
        examples.append(Example([MASK if i == mask_id else tokenizer.tokens([i])[0] for i in read], fates))
    return examples


def _fate(read: int, target: int, mask_id: int) -> Fate:
    if target == PAD_ID:
        return Fate.READ
    if read == mask_id:
        return Fate.HIDDEN
    return Fate.KEPT if read == target else Fate.REPLACED


def draw_masking(sentences: Sequence[str], n_epochs: int, seed: int, picture: Path) -> None:
    """Draw the first sentence as a row of cells for each epoch. Arguments as for `masked_examples`."""
    examples = masked_examples(sentences, n_epochs, MaskingConfig(next_sentence=False), seed)
    n_tokens = len(examples[0].tokens)
    with sheet(picture, (1 + 0.62 * n_tokens, 1 + 0.32 * n_epochs)) as (axes,):
        fates = [[int(fate) for fate in example.fates] for example in examples]
        axes.imshow(fates, cmap=ListedColormap(list(_FATE_COLORS.values())), vmin=0, vmax=len(Fate) - 1, aspect="auto")
        for row, example in enumerate(examples):
            for column, (token, fate) in enumerate(zip(*example, strict=True)):
                color = "#555555" if fate is Fate.READ else "white"
                axes.text(column, row, token, ha="center", va="center", fontsize=8, color=color)
        axes.set_yticks(range(n_epochs), [f"epoch {n + 1}" for n in range(n_epochs)])
        axes.set_xticks([])
        axes.set_xticks([i - 0.5 for i in range(1, n_tokens)], minor=True)
        axes.set_yticks([i - 0.5 for i in range(1, n_epochs)], minor=True)
        axes.grid(which="minor", color="white", lw=1.5)
        axes.tick_params(which="both", length=0)
        handles = [Patch(color=_FATE_COLORS[fate], label=name) for fate, name in _NAMES.items()]
        axes.legend(handles=handles, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 0))


# Gradient norms by depth before training, with the norm first or last (Xiong et al. 2020).

_N_LAYERS, _N_GRADIENT_DRAWS = 12, 4
_BLOCK_D_MODEL, _N_HEADS, _N_CLASSES = 64, 4, 64


def gradient_norms(norm_first: bool, n_layers: int = _N_LAYERS, seed: int = 0) -> list[float]:
    """Return the gradient norms of W₂ of each block's feed-forward layer, for a loss on top of a stack of blocks.

    Args:
        norm_first: place of the norms; with the norm first, one more follows the last block.
        n_layers: number of blocks.
        seed: random seed of weights, input and targets.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        blocks = [_block(norm_first) for _ in range(n_layers)]
        output = nn.Linear(_BLOCK_D_MODEL, _N_CLASSES)
        initialise(nn.ModuleList([*blocks, output]))
        x, target = torch.randn(8, 16, _BLOCK_D_MODEL), torch.randint(_N_CLASSES, (8 * 16,))
    for block in blocks:
        x = block(x)
    if norm_first:
        x = F.layer_norm(x, (_BLOCK_D_MODEL,))
    weights = [block.feed_forward.narrow.weight for block in blocks]
    gradients = torch.autograd.grad(F.cross_entropy(output(x).flatten(0, 1), target), weights)
    return [gradient.norm().item() for gradient in gradients]


def _block(norm_first: bool) -> EncoderBlock:
    attention, feed_forward = (
        MultiHeadAttention(_BLOCK_D_MODEL, _N_HEADS),
        FeedForward(_BLOCK_D_MODEL, 4 * _BLOCK_D_MODEL),
    )
    return EncoderBlock(attention, feed_forward, _BLOCK_D_MODEL, norm_first=norm_first)


def draw_norm_place(picture: Path) -> None:
    """Draw the gradient norm against depth, averaged over some seeds, with a line for each place of the norm."""
    with sheet(picture, (6.5, 3.8)) as (axes,):
        for norm_first, label in ((True, "norm first: x + f(norm(x))"), (False, "norm last: norm(x + f(x))")):
            draws = torch.tensor([gradient_norms(norm_first, seed=seed) for seed in range(_N_GRADIENT_DRAWS)])
            axes.plot(range(1, _N_LAYERS + 1), draws.mean(0).numpy(), "o-", ms=4, label=label)
        axes.set(xlabel="block, from the input up", ylabel="norm of the gradient of W₂", ylim=(0, None))
        axes.set_title("Gradients before the first update")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="lower left")


# Tables of positional encodings, and the similarity of any two positions.

_SUFFIX = "positions.table.weight"  # of the name of a learned table, in any network
_MOST = 64  # components shown in a heat map
_POSITION_COLORS = colormaps["RdBu_r"].resampled(
    25
)  # few colours, to keep the file small even for a table without any pattern


def learned_table(weights: Path) -> Float[Tensor, "L D"]:
    """Return the first learned table of positions in a run's weights.

    Raises:
        ValueError: the file cannot be read, or its network has no learned positions.
    """
    tensors = read_weights(weights)
    name = next((name for name in sorted(tensors) if name.endswith(_SUFFIX)), None)
    if name is None:
        raise ValueError(f"{weights} has no learned positions: train with --model.positions learned")
    return tensors[name].float()


def draw_positions(tables: Mapping[str, Float[Tensor, "L D"]], picture: Path) -> None:
    """Draw each table as a heat map, and the cosine similarity of any two of its rows.

    Args:
        tables: tables by name.
        picture: file to write.
    """
    with sheet(picture, (10, 3.7 * len(tables)), rows=len(tables), columns=2, widths=(1.3, 1)) as panels:
        for row, (name, table) in enumerate(tables.items()):
            values, alike = panels[2 * row : 2 * row + 2]
            shown = table[:, :_MOST]
            _heat_map(values, shown, shown.abs().quantile(0.99).item())
            values.set(title=name, aspect="auto", ylabel="position")
            values.set(xlabel="component" if table.size(1) <= _MOST else f"component, the first {_MOST}")
            unit = F.normalize(table, dim=-1)
            _heat_map(alike, unit @ unit.t(), 1)
            alike.set(title="cosine of two positions", xlabel="position", ylabel="position")


def _heat_map(axes: Axes, values: Float[Tensor, "R C"], reach: float) -> None:
    # nearest: blending neighbours would turn a fast wave grey
    image = axes.imshow(values.numpy(), cmap=_POSITION_COLORS, vmin=-reach, vmax=reach, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes)


# Why scores are divided by √K (Vaswani et al. 2017, 3.2.1): wide heads would attend to a single key.

_WIDTHS = tuple(2**i for i in range(11))
_N_SCORE_DRAWS, _N_KEYS = 512, 16


class Sharpness(NamedTuple):
    """How sharply queries of one width attend to keys, with all components drawn from N(0, 1)."""

    score_std: float
    largest_weight: float  # mean over queries


def sharpness(width: int, scaled: bool) -> Sharpness:
    """Return the sharpness of a head of width K.

    Args:
        width: K.
        scaled: whether to divide by √K, as attention does; if not, queries are multiplied by √K to undo it.
    """
    draw = torch.Generator().manual_seed(width)
    query, key = (torch.randn(_N_SCORE_DRAWS, 1, n, width, generator=draw) for n in (1, _N_KEYS))
    if not scaled:
        query = query * math.sqrt(width)
    weights: Tensor = ScaledDotProductAttention()(query, key, key)[1]
    scores = query @ key.transpose(-2, -1) / math.sqrt(width)
    return Sharpness(scores.std().item(), weights.amax(-1).mean().item())


def draw_scaling(picture: Path) -> None:
    """Draw the spread of scores and the largest weight against the width of a head, with and without the division."""
    with sheet(picture, (9, 3.6), columns=2) as (spread, largest):
        for scaled, label, style in ((False, "q · k", "o--"), (True, "q · k / √K", "o-")):
            found = [sharpness(width, scaled) for width in _WIDTHS]
            spread.plot(_WIDTHS, [point.score_std for point in found], style, ms=4, label=label)
            largest.plot(_WIDTHS, [point.largest_weight for point in found], style, ms=4, label=label)
        spread.set(title="Scores", ylabel="standard deviation")
        spread.set_yscale("log", base=2)
        spread.yaxis.set_major_formatter(ScalarFormatter())
        largest.set(title=f"Softmax over {_N_KEYS} keys", ylabel="weight of the likeliest key", ylim=(0, 1.05))
        largest.axhline(1 / _N_KEYS, color="gray", lw=0.8, ls=":", label=f"1 / {_N_KEYS}")
        for axes in (spread, largest):
            axes.set_xscale("log", base=4, subs=[])
            axes.set(xlabel="width of a head, K")
            axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.grid(alpha=0.3)
            axes.legend(frameon=False)


_WEIGHTS = "model.safetensors"
_SOURCES = (
    ("京都", "は", "日本", "の", "古都", "です", "。", EOS),
    ("雨", "です", "。", EOS, PAD, PAD, PAD, PAD),
)
_TARGETS = (
    (BOS, "Kyoto", "is", "an", "old", "capital", "."),
    (BOS, "It", "is", "raining", ".", PAD, PAD),
)
_READ_BEFORE = ("Kyoto", "is", "an", "old", "capital", ".")
_READ_NOW = ("It", "lies", "inland", ".", "Rain", "fell", ".")
_MASKED = (
    "京都 は 千 年 の 間 日本 の 都 で あっ た 。",
    "奈良 に は 古い 寺 が たくさん ある 。",
    "大阪 から 電車 で 三十 分 かかり ます 。",
)
_SEED = 25  # gives ten typical epochs: 16 tokens masked, 2 replaced and 2 kept


class FromRun(NamedTuple):
    """A picture of a trained run: the newest run of a preset that has the file."""

    preset: str
    file: str
    command: str  # command that trains one
    draw: Callable[[Path, Path], None]  # arguments: the file, the picture


def _draw_sinusoid(picture: Path) -> None:
    draw_positions({"sinusoid": sinusoid(100, 64)}, picture)


def _draw_learned(weights: Path, picture: Path) -> None:
    table = learned_table(weights)
    draw_positions({"sinusoid": sinusoid(*table.shape), f"learned, {_preset(weights.parent)}": table}, picture)


def _preset(run: Path) -> str:
    """Return the name of a run without its time stamp."""
    return run.name.split("-")[0]


DRAWN: dict[str, Callable[[Path], None]] = {
    "scaling": draw_scaling,
    "masks": lambda picture: draw_masks(_SOURCES, _TARGETS, picture),
    "positions": _draw_sinusoid,
    "activations": draw_activations,
    "norm_place": draw_norm_place,
    "learning_rates": draw_learning_rates,
    "label_smoothing": draw_label_smoothing,
    "length_penalty": draw_length_penalty,
    "bert_masking": lambda picture: draw_masking(_MASKED, 10, _SEED, picture),
    "memory_mask": lambda picture: draw_memory_mask(_READ_BEFORE, _READ_NOW, 4, picture),
}
FROM_RUNS = {
    "demo_curve": FromRun("demo", LOG, "make demo", lambda log, picture: draw_curves({"": log}, picture)),
    "learned_positions": FromRun(
        "multi30k_de_en_words",
        _WEIGHTS,
        "python train.py --config multi30k_de_en_words",
        _draw_learned,
    ),
}
# pictures drawn by other commands, which need a run
ELSEWHERE = {
    "demo_attention": "make demo leaves it in its run, as attention.png",
    "beam_width": "python evaluate.py tune pickles/RUN --beams 1 2 3 4 5 7 10 15 20 30 50 70 100 "
    "--length_penalties 0 0.6 1 1.4 --picture figure/beam_width.png",
    "kftt_ja_en_small_curve": "python -m utils.visualize.curve pickles/RUN --picture figure/kftt_ja_en_small_curve.png",
    "memory": "python -m utils.task.perplexity --run pickles/XL pickles/VANILLA --picture figure/memory.png",
}


def draw_all(folder: Path, pickles: Path, say: Callable[[str], object]) -> None:
    """Draw every picture that can be drawn, and report for each of the rest the command that makes it.

    Args:
        folder: folder to write to.
        pickles: folder of runs.
        say: called with a line for each picture.
    """
    for name, draw in DRAWN.items():
        draw(folder / f"{name}.png")
        say(f"drawn: {name}.png")
    for name, source in FROM_RUNS.items():
        files = sorted(pickles.glob(f"{source.preset}-*/{source.file}"), key=lambda file: file.stat().st_mtime)
        if files:
            source.draw(files[-1], folder / f"{name}.png")
            say(f"drawn: {name}.png, from {files[-1].parent.name}")
        else:
            say(f"left out: {name}.png, which needs a run of {source.preset}: {source.command}")
    for name, command in ELSEWHERE.items():
        say(f"left out: {name}.png, which another command draws: {command}")


def build_parser() -> Parser:
    """Build the parser."""
    parser = Parser(
        prog="docs.figures",
        usage="python -m docs.figures [--folder FOLDER]",
        description="Draw the pictures of docs/; those of trained runs only if there are such runs.",
    )
    parser.add_argument("--folder", type=Path, default=FIGURE, help="folder to write to (default: figure/)")
    return parser


def main() -> None:
    """Draw all pictures, printing a line for each."""
    draw_all(build_parser().parse_args().folder, PICKLES, lambda line: print(line, flush=True))


if __name__ == "__main__":
    run_command("figures", main)
