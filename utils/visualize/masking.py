"""The input of a masked language model for one sentence in successive epochs (Devlin et al. 2019, 3.1)."""

from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from const.token import PAD_ID
from utils.dataset.documents import Document, DocumentTokens
from utils.dataset.masked import MaskedEpoch, MaskingConfig
from utils.dataset.token_array import TokenArray
from utils.text.word_tokenizer import WordTokenizer
from utils.visualize.sheet import sheet

MASK = "[MASK]"


class Fate(IntEnum):
    """What happens to a token."""

    READ = 0
    HIDDEN = 1
    REPLACED = 2
    KEPT = 3


_COLORS = {Fate.READ: "#f2f2f2", Fate.HIDDEN: "#4a90c2", Fate.REPLACED: "#e0853c", Fate.KEPT: "#6bb36b"}
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
        axes.imshow(fates, cmap=ListedColormap(list(_COLORS.values())), vmin=0, vmax=len(Fate) - 1, aspect="auto")
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
        handles = [Patch(color=_COLORS[fate], label=name) for fate, name in _NAMES.items()]
        axes.legend(handles=handles, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 0))
