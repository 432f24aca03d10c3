"""The pictures of docs/: `python -m docs.figures`, or `make figures`."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import ConnectionPatch, Patch, Rectangle
from matplotlib.ticker import ScalarFormatter
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor, nn

from config.data import MaskingConfig
from config.search import SearchConfig
from config.training import OptimizerConfig
from const.path import FIGURE, PICKLES, PRESET
from const.token import BOS, BOS_ID, EOS, EOS_ID, PAD, PAD_ID, SPECIAL_TOKENS, UNK_ID
from docs import diagrams
from docs.architecture import draw_architecture
from layers.encoder_block import EncoderBlock
from layers.feed_forward import ACTIVATION, FeedForward
from layers.mask import causal_mask, padding_mask
from layers.multi_head_attention import MultiHeadAttention
from layers.positional_encoding import sinusoid
from layers.probe import recorded_calls
from layers.scaled_dot_product_attention import ScaledDotProductAttention
from models.weight import initialise
from utils.command import Parser, run_command
from utils.config import config_type_of
from utils.dataset import masked
from utils.dataset.ids import TokenArray
from utils.dataset.monolingual import Document, DocumentTokens
from utils.file import read_json
from utils.load import TrainedBert, load_bert, load_run
from utils.run import TEST, WEIGHTS
from utils.search.forced import attention_weights
from utils.task.translation import SHOWN, draw_sample, legible
from utils.text.tokenizer import WordTokenizer, id_of_each
from utils.training.checkpoint import read_weights
from utils.training.loss import projected_cross_entropy
from utils.training.report import LOG, Sample, spread
from utils.training.schedule import learning_rate
from utils.visualize.attention import heat_map
from utils.visualize.curve import draw_curves, sheet

_VOCABULARY = (*SPECIAL_TOKENS, "の", "は", "です", "京都", "奈良", "寺", "庭", "古都")
_SENTENCE = ("京都", "の", "寺", "の", "苔", EOS)  # 苔 is not in the vocabulary


def draw_embedding(picture: Path) -> None:
    """Draw the look-up of a sentence in an embedding, as the product of a one-hot matrix and the table."""
    tokenizer = WordTokenizer(_VOCABULARY[len(SPECIAL_TOKENS) :], lowercase=False)
    (words,) = tokenizer.encode([" ".join(_SENTENCE[:-1])])
    ids = [*words, EOS_ID]
    table = torch.randn(len(_VOCABULARY), 8, generator=torch.Generator().manual_seed(0))
    one_hot = F.one_hot(torch.tensor(ids), len(_VOCABULARY)).float()
    rows = [f"{token}  {i}" for token, i in zip(_SENTENCE, ids, strict=True)]
    entries = [f"{token}  {i}" for i, token in enumerate(_VOCABULARY)]
    with sheet(picture, (10.5, 4.4), columns=3, widths=(12, 8, 8)) as (left, middle, right):
        for axes, values, names in ((left, one_hot, rows), (middle, table, entries), (right, one_hot @ table, rows)):
            axes.imshow(values.numpy(), cmap="RdBu_r", vmin=-2, vmax=2)
            axes.set_yticks(range(len(names)), names)
            axes.set_xticks([])
            _part_cells(axes, *values.shape)
        left.set(title="one-hot (L, V)  ×", xlabel="token of the vocabulary")
        left.set_xticks(range(len(_VOCABULARY)), map(str, range(len(_VOCABULARY))))
        middle.set(title="embedding (V, D)  =", xlabel="component")
        right.set(title="vectors (L, D)", xlabel="component")
        right.yaxis.tick_right()
        for row, i in enumerate(ids):  # from each row of the table to where it goes
            ends = (table.size(1) - 0.5, i), (-0.5, row), "data", "data"
            right.add_artist(ConnectionPatch(*ends, axesA=middle, axesB=right, color="gray", lw=0.8, zorder=0))


def draw_activations(picture: Path) -> None:
    """Draw f(x) and f'(x) of each available activation."""
    reach = 4.0
    with sheet(picture, (9, 3.8), columns=2) as (value, slope):
        for name, activation in ACTIVATION.items():
            x = torch.linspace(-reach, reach, 401, dtype=torch.float64, requires_grad=True)
            y = activation(x)
            (dy,) = torch.autograd.grad(y.sum(), x)
            value.plot(x.detach().numpy(), y.detach().numpy(), label=name)
            slope.plot(x.detach().numpy(), dy.numpy(), label=name)
        value.set(title="f(x)", xlabel="x", ylim=(-0.6, reach))
        slope.set(title="f′(x)", xlabel="x")
        for axes in (value, slope):
            axes.axhline(0, color="gray", lw=0.8)
            _grid(axes)


def _grid(axes: Axes, **legend: Any) -> None:
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, **legend)


_VOCAB = 100


def smoothed_losses(probabilities: Sequence[float], smoothing: float) -> Float[Tensor, " N"]:
    """Return the loss in nats of a token predicted with each probability; other tokens share the rest equally."""
    p = torch.tensor(probabilities)
    logits = ((1 - p) / (_VOCAB - 1)).log()[:, None].repeat(1, _VOCAB)
    logits[:, 0] = p.log()
    right, weight = torch.zeros(1, dtype=torch.long), torch.eye(_VOCAB)
    return torch.stack([projected_cross_entropy(row[None, None], weight, None, right, smoothing)[0] for row in logits])


def draw_label_smoothing(picture: Path) -> None:
    """Draw the loss against the probability of the right token: with label smoothing, full certainty costs more."""
    p = torch.linspace(0.02, 0.998, 490).tolist()
    with sheet(picture, (6.5, 3.8)) as (axes,):
        for smoothing in (0.0, 0.1, 0.2):
            losses = smoothed_losses(p, smoothing)
            (line,) = axes.plot(p, losses.numpy(), label=f"ε = {smoothing:g}")
            if smoothing:
                least = int(losses.argmin())
                axes.plot(p[least], losses[least].item(), "o", color=line.get_color())
        axes.set(xlabel="probability of the right token", ylabel="nats per target token", ylim=(0, 4))
        axes.set_title(f"Label smoothing, {_VOCAB} tokens; dots: the least loss")
        _grid(axes)


def draw_learning_rates(picture: Path) -> None:
    """Draw all schedules over the updates."""
    n_steps, n_warmup = 6000, 1000
    steps = np.unique(np.linspace(1, n_steps, 600).round().astype(int))
    with sheet(picture, (6, 3.8)) as (axes,):
        for schedule in get_args(get_type_hints(OptimizerConfig)["schedule"]):
            config = OptimizerConfig(schedule=schedule, peak_lr=1e-3, warmup_steps=n_warmup).ending_at(n_steps)
            axes.plot(steps, [learning_rate(int(step), config) for step in steps], label=schedule)
        title = f"peak_lr 0.001, warmup_steps {n_warmup}"
        axes.set(title=title, ylim=(0, 0.0013), xlabel="update", ylabel="learning rate")
        _grid(axes, loc="upper right", ncols=2)


def draw_length_penalty(picture: Path) -> None:
    """Draw the divisor, and the score of translations of equally likely tokens, against their length."""
    nats = 0.5  # cost of each token of a translation
    lengths = range(1, 51)
    settings = [SearchConfig(length_penalty=penalty) for penalty in (0.0, 0.6, 1.0)]
    with sheet(picture, (10, 3.8), columns=2) as (divisor, score):
        for config in (*settings, SearchConfig(length_penalty=1.0, normalization="length")):
            label = f"α = {config.length_penalty:g}"
            label += f", {config.normalization}" if config.length_penalty else ""
            penalties = [config.penalty(n) for n in lengths]
            divisor.plot(lengths, penalties, label=label)
            score.plot(lengths, [-nats * n / penalty for n, penalty in zip(lengths, penalties, strict=True)])
        divisor.set(title="Divided by", ylim=(0, 15))
        score.set(title=f"Score of tokens that cost {nats} nats each", ylim=(-16, 0.5))
        for axes in (divisor, score):
            axes.set(xlabel="tokens of a translation, </s> included")
            axes.grid(alpha=0.3)
        divisor.legend(frameon=False)


SOURCES = (
    ("京都", "は", "日本", "の", "古都", "です", "。", EOS),
    ("雨", "です", "。", EOS, PAD, PAD, PAD, PAD),
)
TARGET = (BOS, "It", "is", "raining", ".", PAD, PAD)  # of the second


def draw_masks(picture: Path) -> None:
    """Draw the padding mask of a batch, and the masks of its last pair in the three attentions of a translator."""
    padding = padding_mask(torch.tensor([[PAD_ID if t == PAD else UNK_ID for t in row] for row in SOURCES]), PAD_ID)
    src, last = SOURCES[-1], padding[-1, 0]
    with sheet(picture, (10, 7.6), rows=2, columns=2) as (batch, encoder, decoder, cross):
        _cells(batch, padding[:, 0, 0], [f"sentence {i + 1}" for i in range(len(SOURCES))], range(len(src)))
        for row, tokens in enumerate(SOURCES):
            for column, token in enumerate(tokens):
                color = "white" if padding[row, 0, 0, column] else "#888888"
                batch.text(column, row, token, ha="center", va="center", fontsize=9, color=color)
        batch.set(title="padding_mask of a batch", xlabel="position of the source")
        _cells(encoder, last.expand(len(src), -1), src, src)
        encoder.set(title=f"sentence {len(SOURCES)} in the encoder: padding_mask")
        _cells(decoder, causal_mask(len(TARGET), len(TARGET)), TARGET, TARGET)
        decoder.set(title="in the decoder: causal_mask")
        _cells(cross, last.expand(len(TARGET), -1), TARGET, src)
        cross.set(title="from decoder to encoder: padding_mask")
        for axes in (encoder, decoder, cross):
            axes.set(xlabel="key", ylabel="query")


def memory_mask(memory: Sequence[int], segment: Sequence[int]) -> Bool[Tensor, "T S"]:
    """Return which positions a segment may attend to in Transformer-XL, given the document number of each position."""
    documents = torch.tensor([*memory, *segment])
    same = documents[len(memory) :, None] == documents
    return causal_mask(len(segment), len(documents)) & same


def draw_memory_mask(picture: Path) -> None:
    """Draw the mask of a segment that continues the memory's document, or in which a new one begins."""
    memory = ("Kyoto", "is", "an", "old", "capital", ".")
    segment, n_old = ("It", "lies", "inland", ".", "Rain", "fell", "."), 4
    with sheet(picture, (1.5 + 0.42 * (len(memory) + len(segment)), 6.2), rows=2) as (one, two):
        new = f"a new document begins with “{segment[n_old]}”"
        for axes, n_same, title in ((one, len(segment), "one document"), (two, n_old, new)):
            documents = [0] * n_same + [1] * (len(segment) - n_same)
            _cells(axes, memory_mask([0] * len(memory), documents), segment, [*memory, *segment])
            axes.axvline(len(memory) - 0.5, color="black", lw=1.5)
            axes.set(title=title, xlabel="key: memory | segment", ylabel="query")


def _cells(axes: Axes, mask: Bool[Tensor, "R C"], rows: Sequence[object], columns: Sequence[object]) -> None:
    """Draw a cell for each pair of query and key: dark where attention is allowed."""
    axes.imshow(mask.numpy(), cmap=ListedColormap(["#e8e8e8", "#4a90c2"]), vmin=0, vmax=1)
    labels = [str(name) for name in columns]
    axes.set_xticks(range(len(labels)), labels, rotation=90 if max(map(len, labels)) > 2 else 0)
    axes.set_yticks(range(len(rows)), [str(name) for name in rows])
    _part_cells(axes, len(rows), len(labels))


def _part_cells(axes: Axes, n_rows: int, n_columns: int) -> None:
    axes.set_xticks([i - 0.5 for i in range(1, n_columns)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(1, n_rows)], minor=True)
    axes.grid(which="minor", color="white", lw=1.5)
    axes.tick_params(which="both", length=0)


MASK = "[MASK]"
MASKED = (
    "京都 は 千 年 の 間 日本 の 都 で あっ た 。",
    "奈良 に は 古い 寺 が たくさん ある 。",
    "大阪 から 電車 で 三十 分 かかり ます 。",
)
SEED = 25  # gives ten typical epochs: 16 tokens masked, 2 replaced and 2 kept


Fate = IntEnum("Fate", ["READ", "HIDDEN", "REPLACED", "KEPT"], start=0)  # of a token in a masked language model's input
_FATES = {
    "read, not predicted": "#f2f2f2",
    "predicted: masked": "#4a90c2",
    "predicted: replaced by another token": "#e0853c",
    "predicted: left unchanged": "#6bb36b",
}


def masked_examples(
    sentences: Sequence[str], n_epochs: int, config: MaskingConfig, seed: int = 1
) -> list[tuple[list[str], list[Fate]]]:
    """Return the first sentence as read in each epoch (Devlin et al. 2019, 3.1); the others add to the vocabulary."""
    tokenizer = WordTokenizer.train(sentences, min_freq=1, lowercase=False)
    lines = TokenArray.of(tokenizer.encode(sentences), len(tokenizer))
    text = DocumentTokens.of(lines, [Document("all", len(sentences))])
    mask_id, examples = len(tokenizer), []
    for n in range(n_epochs):
        whole = masked.MaskedText(text, tokenizer, config)
        every = masked.masked_examples(whole, None, (seed, n), np.random.default_rng(seed))
        batch: Any = every.make(np.zeros(1, np.int64), [len(lines[0]) + 2])
        read, right = batch.ids[0].tolist(), batch.target[0].tolist()
        fates = [
            Fate.READ if j == PAD_ID else Fate.HIDDEN if i == mask_id else Fate.KEPT if i == j else Fate.REPLACED
            for i, j in zip(read, right, strict=True)
        ]
        examples.append(([MASK if i == mask_id else tokenizer.tokens([i])[0] for i in read], fates))
    return examples


def draw_masking(picture: Path) -> None:
    """Draw a sentence as a row of cells for each of ten epochs."""
    examples = masked_examples(MASKED, 10, MaskingConfig(next_sentence=False), SEED)
    n_tokens = len(examples[0][0])
    with sheet(picture, (1 + 0.62 * n_tokens, 1 + 0.32 * len(examples))) as (axes,):
        colours = ListedColormap(list(_FATES.values()))
        axes.imshow([fates for _, fates in examples], cmap=colours, vmin=0, vmax=len(Fate) - 1, aspect="auto")
        for row, example in enumerate(examples):
            for column, (token, fate) in enumerate(zip(*example, strict=True)):
                color = "#555555" if fate is Fate.READ else "white"
                axes.text(column, row, token, ha="center", va="center", fontsize=8, color=color)
        axes.set_yticks(range(len(examples)), [f"epoch {n + 1}" for n in range(len(examples))])
        axes.set_xticks([])
        _part_cells(axes, len(examples), n_tokens)
        handles = [Patch(color=colour, label=name) for name, colour in _FATES.items()]
        axes.legend(handles=handles, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 0))


_N_LAYERS, _D_MODEL, _N_CLASSES = 12, 64, 64


def gradient_norms(norm_first: bool, n_layers: int = _N_LAYERS, seed: int = 0) -> list[float]:
    """Return the gradient norms of W₂ of each block's feed-forward layer before training (Xiong et al. 2020).

    The loss stands on top of a stack of blocks; with the norm first, one more norm follows the last block.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parts = [(MultiHeadAttention(_D_MODEL, 4), FeedForward(_D_MODEL, 4 * _D_MODEL)) for _ in range(n_layers)]
        blocks = [EncoderBlock(*both, _D_MODEL, norm_first=norm_first) for both in parts]
        output = nn.Linear(_D_MODEL, _N_CLASSES)
        initialise(nn.ModuleList([*blocks, output]))
        x, target = torch.randn(8, 16, _D_MODEL), torch.randint(_N_CLASSES, (8 * 16,))
    for block in blocks:
        x = block(x)
    if norm_first:
        x = F.layer_norm(x, (_D_MODEL,))
    weights = [block.feed_forward.narrow.weight for block in blocks]
    gradients = torch.autograd.grad(F.cross_entropy(output(x).flatten(0, 1), target), weights)
    return [gradient.norm().item() for gradient in gradients]


def draw_norm_place(picture: Path) -> None:
    """Draw the gradient norm against depth, averaged over four seeds, with a line for each place of the norm."""
    with sheet(picture, (6.5, 3.8)) as (axes,):
        for norm_first, label in ((True, "norm first: x + f(norm(x))"), (False, "norm last: norm(x + f(x))")):
            draws = torch.tensor([gradient_norms(norm_first, seed=seed) for seed in range(4)])
            axes.plot(range(1, _N_LAYERS + 1), draws.mean(0).numpy(), "o-", ms=4, label=label)
        axes.set(xlabel="block, from the input up", ylabel="norm of the gradient of W₂", ylim=(0, None))
        axes.set_title("Gradients before the first update")
        _grid(axes, loc="lower left")


def draw_norms(picture: Path) -> None:
    """Draw the vectors of two sentences before and after two norms, with a frame around what is averaged together."""
    tokens = ["Kyoto", "is", "an", "old", "capital", EOS, "Rain", "fell", EOS, PAD, PAD, PAD]
    draw = torch.Generator().manual_seed(0)
    sizes, offsets = (torch.rand(n, m, generator=draw) for n, m in ((len(tokens), 1), (1, 8)))
    x = 2 * sizes * torch.randn(len(tokens), 8, generator=draw) + 4 * offsets - 2
    x[tokens.index(PAD) :] = 0
    panels = {
        "vectors": (x, None),
        "LayerNorm": (F.layer_norm(x, (8,)), Rectangle((-0.5, 1.5), 8, 1)),
        "BatchNorm": (F.batch_norm(x, None, None, training=True), Rectangle((1.5, -0.5), 1, len(tokens))),
    }
    with sheet(picture, (8.5, 4.4), columns=len(panels)) as axes:
        for one, (title, (values, group)) in zip(axes, panels.items(), strict=True):
            one.imshow(values.numpy(), cmap="RdBu_r", vmin=-3, vmax=3, aspect="auto")
            one.set(title=title, xlabel="component")
            one.set_yticks(range(len(tokens)), tokens if one is axes[0] else [""] * len(tokens))
            one.set_xticks([])
            _part_cells(one, *values.shape)
            one.axhline(5.5, color="black", lw=1)
            if group is not None:
                group.set(fill=False, lw=2.5, zorder=3, clip_on=False)
                one.add_patch(group)


def learned_table(weights: Path) -> Float[Tensor, "L D"]:
    """Return the first learned table of positions in a run's weights."""
    tables = [table for name, table in sorted(read_weights(weights).items()) if name.endswith("positions.table.weight")]
    if not tables:
        raise ValueError(f"{weights} has no learned positions: train with --model.positions learned")
    return tables[0].float()


def draw_positions(tables: Mapping[str, Float[Tensor, "L D"]], picture: Path) -> None:
    """Draw each table of positional encodings as a heat map, and the cosine similarity of any two of its rows."""
    most = 64  # components shown
    with sheet(picture, (10, 3.7 * len(tables)), rows=len(tables), columns=2, widths=(1.3, 1)) as panels:
        for row, (name, table) in enumerate(tables.items()):
            values, alike = panels[2 * row : 2 * row + 2]
            shown = table[:, :most]
            _heat_map(values, shown, shown.abs().quantile(0.99).item())
            values.set(title=name, aspect="auto", ylabel="position")
            values.set(xlabel="component" if table.size(1) <= most else f"component, the first {most}")
            unit = F.normalize(table, dim=-1)
            _heat_map(alike, unit @ unit.t(), 1)
            alike.set(title="cosine of two positions", xlabel="position", ylabel="position")


def _heat_map(axes: Axes, values: Float[Tensor, "R C"], reach: float) -> None:
    # few colours: a small file even without any pattern; nearest: blended neighbours would turn a fast wave grey
    colours = colormaps["RdBu_r"].resampled(25)
    image = axes.imshow(values.numpy(), cmap=colours, vmin=-reach, vmax=reach, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes)


_N_KEYS = 16


def sharpness(width: int, scaled: bool) -> tuple[float, float]:
    """Return the standard deviation of the scores of a head of width K, and its mean largest weight.

    Queries and keys are drawn from N(0, 1). Scores not divided by √K, wide heads would attend to a single key (Vaswani
    et al. 2017, 3.2.1).
    """
    draw = torch.Generator().manual_seed(width)
    query, key = (torch.randn(512, 1, n, width, generator=draw) for n in (1, _N_KEYS))
    if not scaled:
        query = query * math.sqrt(width)  # undoes the division
    weights: Tensor = ScaledDotProductAttention()(query, key, key)[1]
    scores = query @ key.transpose(-2, -1) / math.sqrt(width)
    return scores.std().item(), weights.amax(-1).mean().item()


def draw_scaling(picture: Path) -> None:
    """Draw the spread of scores and the largest weight against the width of a head, with and without the division."""
    widths = [2**i for i in range(11)]
    with sheet(picture, (9, 3.6), columns=2) as (spread, largest):
        for scaled, label, style in ((False, "q · k", "o--"), (True, "q · k / √K", "o-")):
            found = [sharpness(width, scaled) for width in widths]
            for i, axes in enumerate((spread, largest)):
                axes.plot(widths, [values[i] for values in found], style, ms=4, label=label)
        spread.set(title="Scores", ylabel="standard deviation")
        spread.set_yscale("log", base=2)
        spread.yaxis.set_major_formatter(ScalarFormatter())
        largest.set(title=f"Softmax over {_N_KEYS} keys", ylabel="weight of the likeliest key", ylim=(0, 1.05))
        largest.axhline(1 / _N_KEYS, color="gray", lw=0.8, ls=":", label=f"1 / {_N_KEYS}")
        for axes in (spread, largest):
            axes.set_xscale("log", base=4, subs=[])
            axes.set(xlabel="width of a head, K")
            axes.xaxis.set_major_formatter(ScalarFormatter())
            _grid(axes)


def draw_bootstrap(picture: Path) -> None:
    """Draw by how much one run's BLEU exceeds another's in a thousand draws of twenty sentences (Koehn 2004)."""
    runs = [read_json(FIGURE / "results" / f"kftt_ja_en{name}_1.json")["samples"] for name in ("_small", "")]
    drawn = np.random.default_rng(12345).choice(len(runs[0]), size=(1000, len(runs[0])))  # sacreBLEU's

    def gain(lines: Iterable[int]) -> float:
        texts = [[[run[i][side] for i in lines] for side in ("translation", "reference")] for run in runs]
        small, large = (BLEU().corpus_score(ours, [right]).score for ours, right in texts)
        return large - small

    gains = [gain(lines) for lines in drawn]
    with sheet(picture, (6.5, 3.8)) as (axes,):
        axes.hist(gains, bins=30, color="#4a90c2")
        axes.hlines(0, *np.percentile(gains, [2.5, 97.5]), color="black", lw=8, label="95 % of the draws")
        axes.axvline(gain(range(len(runs[0]))), color="black", label="the twenty sentences themselves")
        axes.axvline(0, color="#e0853c", ls="--", label="no difference")
        axes.set(xlabel="BLEU of kftt_ja_en − BLEU of kftt_ja_en_small", ylabel="draws")
        axes.set_title("1,000 draws of 20 sentences")
        _grid(axes)


def draw_demo(test: Path, picture: Path) -> None:
    """Draw the cross-attention that a run has drawn at its end, as attention.png."""
    samples = [Sample(**sample) for sample in read_json(test)["samples"]]
    run = load_run(test.parent, torch.device("cpu"))
    draw_sample(run, legible(spread(samples, SHOWN)), picture)


def draw_learned(weights: Path, picture: Path) -> None:
    """Draw the learned positions of a run beside sinusoids."""
    table, preset = learned_table(weights), weights.parent.name.split("-")[0]
    draw_positions({"sinusoid": sinusoid(*table.shape), f"learned, {preset}": table}, picture)


# line 8 of Multi30k's training text and line 6 of its dev text, counted from 0, which bentrevett's notebook shows
NOTEBOOK = (
    "eine frau mit einer großen geldbörse geht an einem tor vorbei .",
    "ein brauner hund rennt dem schwarzen hund hinterher .",
)


def draw_last_heads(weights: Path, picture: Path) -> None:
    """Draw each head of the last cross-attention of a run while it translates two sentences."""
    run = load_run(weights.parent, torch.device("cpu"))
    src, tgt = run.tokenizers
    n_heads, places = run.config.model.n_heads, id_of_each(tgt)
    with sheet(picture, (n_heads * 1.5, 13), rows=2 * len(NOTEBOOK), columns=n_heads // 2, dpi=80) as axes:
        for i, found in enumerate(run.translator().translate(NOTEBOOK)):
            (source,), target = src.encode([NOTEBOOK[i]]), [places[token] for token in found.candidates[0].tokens]
            heads = attention_weights(run.model, source, target)["cross"][-1]
            for j, (one, weight) in enumerate(zip(axes[i * n_heads :], heads, strict=False)):
                heat_map(one, weight, [*src.tokens(source), EOS], [*tgt.tokens(target), EOS], f"head {j + 1}")
                one.tick_params(labelleft=j % (n_heads // 2) == 0)


# a word of two meanings: an emperor and a family, and a street of Kyoto with its bridge and station
SANJO = (
    "三条天皇は眼病に苦しんだ。",
    "藤原道長は三条天皇に譲位を迫った。",
    "明治政府では三条実美が太政大臣となった。",
    "母は三条公忠の娘である。",
    "三条通に面した店が並ぶ。",
    "京阪電車は三条駅から出る。",
    "東海道は三条大橋で終わる。",
    "鴨川を渡ると三条に出る。",
)
_NAMES = 4  # of these are people


@torch.inference_mode()
def similarity_by_layer(bert: TrainedBert, texts: Sequence[str], word: str) -> Float[Tensor, "N B B"]:
    """Return the cosine similarity of a word's vectors in each two texts: as embedded, and after each layer."""
    vectors = []
    for ids in bert.vocabulary.encode(texts):
        read = [BOS_ID, *ids, EOS_ID]
        with recorded_calls(bert.net.bert.encoder) as calls:
            bert.net.bert(torch.tensor([read]))
        layers = torch.cat([calls[0][0][0], *(output for _, output in calls)])
        vectors.append(layers[:, bert.vocabulary.tokens(read).index(word)])
    unit = F.normalize(torch.stack(vectors, 1), dim=-1)
    return unit @ unit.mT


def draw_meanings(weights: Path, picture: Path) -> None:
    """Draw how alike a word of two meanings is to itself in other sentences, for each layer of a BERT."""
    found = similarity_by_layer(load_bert(weights.parent), SANJO, "三条")
    with sheet(picture, (1.4 * len(found) + 3.2, 1.9), columns=len(found)) as axes:
        for layer, (one, similar) in enumerate(zip(axes, found, strict=True)):
            image = one.imshow(similar, cmap="Blues", vmin=0.5, vmax=1)
            across = similar[:_NAMES, _NAMES:].mean()
            one.set_title(f"layer {layer}: {across:.2f}" if layer else f"embedding: {across:.2f}", fontsize=10)
            one.axhline(_NAMES - 0.5, color="#b8460a", lw=1)
            one.axvline(_NAMES - 0.5, color="#b8460a", lw=1)
            one.set_xticks([])
            one.set_yticks(range(len(SANJO)), SANJO if layer == 0 else [], fontsize=8)
            one.tick_params(length=0)
        axes[0].figure.colorbar(image, ax=axes, shrink=0.8, label="cosine similarity")


def draw_preset(name: str, picture: Path) -> None:
    """Draw the network of a preset."""
    preset = PRESET / f"{name}.yaml"
    draw_architecture(config_type_of(preset).load(preset), picture)


DRAWN: dict[str, Callable[[Path], None]] = {
    "architecture": lambda picture: draw_preset("kftt_ja_en", picture),
    "architecture_paper": lambda picture: draw_preset("tanaka_en_ja_words", picture),
    "architecture_bert": lambda picture: draw_preset("bert_ja", picture),
    "architecture_transformer_xl": lambda picture: draw_preset("transformer_xl_en", picture),
    "byte_pairs": diagrams.draw_merges,
    "embedding": draw_embedding,
    "scaling": draw_scaling,
    "heads": diagrams.draw_split,
    "self_attention": diagrams.draw_self_attention,
    "unrolled": diagrams.draw_unrolled,
    "masks": draw_masks,
    "positions": lambda picture: draw_positions({"sinusoid": sinusoid(100, 64)}, picture),
    "activations": draw_activations,
    "norms": draw_norms,
    "norm_order": diagrams.draw_norm_order,
    "norm_place": draw_norm_place,
    "teacher_forcing": diagrams.draw_teacher_forcing,
    "dropout": diagrams.draw_dropout,
    "learning_rates": draw_learning_rates,
    "label_smoothing": draw_label_smoothing,
    "beam": diagrams.draw_beam,
    "length_penalty": draw_length_penalty,
    "cache": diagrams.draw_cache,
    "bert_masking": draw_masking,
    "bootstrap": draw_bootstrap,
    "memory_mask": draw_memory_mask,
}
# picture -> a file of the newest run of a preset, and how it is drawn
FROM_RUNS: dict[str, tuple[str, str, Callable[[Path, Path], None]]] = {
    "demo_attention": ("demo", TEST, draw_demo),
    "demo_curve": ("demo", LOG, lambda log, picture: draw_curves({"": log}, picture)),
    "learned_positions": ("multi30k_de_en_words", WEIGHTS, draw_learned),
    "multi30k_heads": ("multi30k_de_en_words", WEIGHTS, draw_last_heads),
    "bert_layers": ("bert_ja", WEIGHTS, draw_meanings),
}
# pictures drawn by other commands, which need a run; they draw NAME.ja.png, too
ELSEWHERE = {
    "vocabulary": "python -m docs.vocabulary",
    "beam_width": "python evaluate.py tune pickles/RUN --beams 1 2 3 4 5 7 10 15 20 30 50 70 100 "
    "--length-penalties 0 0.6 1 1.4 --picture figure/beam_width.png",
    "kftt_ja_en_small_curve": "python evaluate.py curves pickles/RUN --picture figure/kftt_ja_en_small_curve.png",
    "multi30k_de_en_words_curve": "python evaluate.py curves pickles/RUN "
    "--picture figure/multi30k_de_en_words_curve.png",
    "explain": "python translate.py 京都は日本の古い都である。 --run pickles/kftt_ja_en --explain page.html "
    "&& python -m tests.test_browser page.html figure/explain.png",
    "page": "python -m tests.test_browser pickles/kftt_ja_en 金閣寺は1397年に足利義満が建てた寺である。 "
    "figure/page.png",
    "length": "python evaluate.py compare REFERENCES figure/results/multi30k_de_en_rnn_1.txt "
    "figure/results/multi30k_de_en_1.txt --tgt-lang en --pre-tokenized --sources SOURCES --picture figure/length.png",
    "pairs": "python evaluate.py pairs demo_positions demo_no_positions --picture figure/pairs.png",
    "memory": "python predict.py perplexity --run pickles/XL pickles/VANILLA --picture figure/memory.png",
    "memory_short": "python predict.py perplexity --run xl_0 xl_32 xl_128 --memory-lengths 0 32 64 128 256 "
    "--picture figure/memory_short.png --json figure/memory_short.json",
}


def draw_in_both_languages(draw: Callable[[Path], None], picture: Path) -> None:
    """Draw a picture, and again as NAME.ja.png if it has labels that differ in Japanese."""
    japanese = picture.with_suffix(".ja.png")
    japanese.touch()
    draw(picture)
    if japanese.read_bytes() == picture.read_bytes():
        japanese.unlink()


def main() -> None:
    """Draw every picture that can be drawn, and print for each of the rest the command that makes it."""
    parser = Parser(
        prog="docs.figures",
        usage="python -m docs.figures [--folder FOLDER]",
        description="Draw the pictures of docs/; those of trained runs only if there are such runs.",
    )
    parser.add_argument("--folder", type=Path, default=FIGURE, help="folder to write to (default: figure/)")
    folder = parser.parse_args().folder
    for name, draw in DRAWN.items():
        draw_in_both_languages(draw, folder / f"{name}.png")
        print(f"drawn: {name}.png", flush=True)
    for name, (preset, file, draw_from) in FROM_RUNS.items():
        if files := sorted(PICKLES.glob(f"{preset}-*/{file}"), key=lambda path: path.stat().st_mtime):
            draw_in_both_languages(partial(draw_from, files[-1]), folder / f"{name}.png")
            print(f"drawn: {name}.png, from {files[-1].parent.name}", flush=True)
        else:
            print(f"left out: {name}.png, which needs a run of it: python train.py --config {preset}")
    for name, command in ELSEWHERE.items():
        print(f"left out: {name}.png, which another command draws: {command}")


if __name__ == "__main__":
    run_command("docs.figures", main)
