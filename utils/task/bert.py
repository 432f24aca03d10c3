"""Masked-language modelling: texts in document order, a BERT, its two losses, accuracy; filling in [MASK]s."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import torch

from const.token import BOS_ID, EOS_ID, SPECIAL_TOKENS, UNK_ID
from layers.encoder_block import EncoderBlock
from layers.probe import recorded_weights
from models.bert import BertForPreTraining
from utils.command import Log, aligned
from utils.config import MaskedLanguageConfig
from utils.dataset.corpus import Split
from utils.dataset.masked import MaskedText, masked_examples
from utils.evaluation.validation import masked_accuracy
from utils.export.hugging_face import WordPieceTokenizer, load_hugging_face_bert
from utils.load import load_bert
from utils.search.forced import AttentionMap
from utils.task.task import HeldOut, MonolingualTask
from utils.text.tokenizer import SentencePieceTokenizer, Tokenizer
from utils.training.loss import masked_language_loss
from utils.training.report import Validate

# For masks and sentence pairs of dev and test text, so that runs with different seeds see the same examples.
_HELD_OUT_SEED = 1


class MaskedLanguageTask(MonolingualTask):
    """A text to train and score on."""

    objective = staticmethod(masked_language_loss)
    unit = "masked tok"
    next_step = 'Fill in with it: python predict.py fill-mask --run {} "TEXT WITH A [MASK]"'

    def __init__(self, config: MaskedLanguageConfig, source: Path | None, log: Log) -> None:
        config.training.require_score("accuracy")
        config.batch.require_positions(config.model.max_length)
        if config.masking.next_sentence and config.model.n_segments < 2:
            raise ValueError(
                f"n_segments={config.model.n_segments} has no room for a second sentence: give --model.n_segments 2, "
                "or --masking.next_sentence false"
            )
        super().__init__(config, source, log)

        def text(split: Split) -> MaskedText:
            return MaskedText(self.corpus.tokens(split, self.tokenizer, log), self.tokenizer, config.masking)

        seeds: dict[Split, int] = {"train": config.training.seed, "dev": _HELD_OUT_SEED, "test": _HELD_OUT_SEED}
        self.learn_from(*(self.bucket_sampler(text(split), seed, masked_examples) for split, seed in seeds.items()))

    def scored_by(self) -> Sequence[object]:
        """Return the text, and how it is masked."""
        return [*super().scored_by(), asdict(self.config.masking)]

    def build(self) -> BertForPreTraining:
        """Build a BERT with both heads; its one token beyond the vocabulary is the mask."""
        return BertForPreTraining(self.config.model, len(self.tokenizer) + 1)

    def scorer(self, net: BertForPreTraining, split: HeldOut) -> Validate:
        """Return what scores a network on masked tokens and next sentences."""
        return partial(masked_accuracy, net, self.held_out[split], self.tokenizer)


# A BERT fills in the [MASK]s of a text.

MASK = "[MASK]"
_SPACE = "▁"  # the piece that consists of it alone
_NO_WORD = "\ue000"  # from Unicode's private use area: no piece contains it


class TokenGuess(NamedTuple):
    """A token that may fill a mask."""

    token: int
    probability: float


class Filled(NamedTuple):
    """What a BERT reads, and how it fills in the masks, each independently of the others."""

    ids: list[int]
    candidates: list[list[TokenGuess]]  # for each mask, likeliest first
    text: str  # with the likeliest in each mask


class MaskFiller(NamedTuple):
    """A BERT, and how to encode text for it."""

    net: BertForPreTraining  # in eval mode
    tokenizer: Tokenizer | WordPieceTokenizer
    begin: int  # <s> or [CLS]
    end: int  # </s> or [SEP]
    mask: int
    window: int  # maximum number of positions, begin and end included
    silent: frozenset[int]  # tokens that are not text
    space: int | None = None  # the piece that only marks the beginning of a word, if there is one
    language: str = ""  # of the texts, if it is known

    @classmethod
    def of_run(cls, folder: Path, device: torch.device | None = None) -> "MaskFiller":
        """Read a BERT from one of our runs."""
        config, tokenizer, net = load_bert(folder, device)
        mask = len(tokenizer)
        pieces = tokenizer.tokens(range(mask))
        space = pieces.index(_SPACE) if _SPACE in pieces else None
        window = min(config.model.max_length, config.batch.max_tokens)  # as many as in training
        silent = frozenset([*range(len(SPECIAL_TOKENS)), mask, *([] if space is None else [space])])
        return cls(net, tokenizer, BOS_ID, EOS_ID, mask, window, silent, space, config.data.language)

    @classmethod
    def of_hugging_face(cls, folder: Path, device: torch.device | None = None) -> "MaskFiller":
        """Read a BERT from a folder in Hugging Face's format."""
        net, tokenizer, missing = load_hugging_face_bert(folder)
        if "head" in missing:
            raise ValueError(f"{folder} has no masked-language head: give a folder that BertForMaskedLM was saved to")
        t = tokenizer
        special = frozenset([t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id])
        return cls(net.to(device), t, t.cls_id, t.sep_id, t.mask_id, net.config.max_length, special)

    def ids(self, text: str) -> list[int]:
        """Encode a text as the network reads it."""
        if MASK not in text:
            raise ValueError(f"{text!r} has no {MASK}: write it where something is to be filled in")
        first, *others = text.split(MASK)
        ids = [self.begin, *self.tokenizer.encode([first])[0]]
        for part in others:
            ids += [self.mask, *self._behind_mask(part)]
        ids.append(self.end)
        if len(ids) > self.window:
            raise ValueError(
                f"{len(ids)} tokens, {self.shown(self.begin)} and {self.shown(self.end)} included, are more than the "
                f"{self.window} that the network reads: shorten {text!r}"
            )
        return ids

    def spaced(self, ids: Sequence[int]) -> list[int]:
        """Insert a ▁ before each mask where the network expects one, to ask what follows it.

        Japanese sentences begin with ▁ alone unless there is a piece of ▁ and their first word.
        """
        if self.space is None or len(ids) + ids.count(self.mask) > self.window:
            return [*ids]
        guesses = iter(fill_in(self.net, ids, self.mask, 1))
        return [
            token
            for i in ids
            for token in ((self.space, i) if i == self.mask and next(guesses)[0].token == self.space else (i,))
        ]

    def _behind_mask(self, part: str) -> list[int]:
        """Encode a part that begins in the middle of the text.

        SentencePiece puts a ▁ before any text that it splits. Here an unknown character is put first, which takes the
        ▁, and is removed with it. A space before a mask is not a token: it belongs to the piece that the mask hides, as
        it would to any other piece.
        """
        if not isinstance(self.tokenizer, SentencePieceTokenizer):
            return self.tokenizer.encode([part])[0]
        ids, first = self.tokenizer.encode([_NO_WORD + part, part[:1]])
        known = ids[ids.index(UNK_ID) + 1 :]
        # adjacent unknown characters are one token
        return [UNK_ID, *known] if UNK_ID in first else known

    def shown(self, token: int) -> str:
        """Return a token as it is written."""
        return MASK if token == self.mask else self.tokenizer.tokens([token])[0]

    def fill(self, text: str, top: int) -> Filled:
        """Fill in the masks of a text, with `top` candidates for each."""
        ids = self.spaced(self.ids(text))
        candidates = fill_in(self.net, ids, self.mask, top, self.silent)
        best = (guesses[0].token for guesses in candidates)
        filled = [next(best) if i == self.mask else i for i in ids]
        return Filled(ids, candidates, self.tokenizer.decode([filled])[0])

    def answer(self, text: str, top: int) -> str:
        """Return the text filled in, and a table of candidates, a column for each mask."""
        _, candidates, filled = self.fill(text, top)
        rows = [
            [cell for token, p in row for cell in (self.shown(token), f"{p:.1%}")]
            for row in zip(*candidates, strict=True)
        ]
        return "\n".join([filled, *aligned(rows, "lr" * len(candidates))])


@torch.inference_mode()
def fill_in(
    net: BertForPreTraining, ids: Sequence[int], mask: int, top: int, never: Collection[int] = ()
) -> list[list[TokenGuess]]:
    """Return the `top` likeliest tokens at each masked position of `ids`, which have special tokens at both ends.

    Tokens that are `never` candidates keep their probability: it is not redistributed.
    """
    device = next(net.parameters()).device
    read = torch.tensor([ids], device=device)
    probs = net.head(net.bert(read)[read == mask]).float().softmax(-1)
    probs[:, list(never)] = -1.0
    likeliest = probs.topk(min(top, probs.size(1) - len(set(never))))
    return [
        [TokenGuess(token, p) for token, p in zip(tokens, row, strict=True)]
        for tokens, row in zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    ]


@torch.inference_mode()
def show_bert_attention(filler: MaskFiller, text: str, name: str, path: Path) -> None:
    """Draw where every head of every layer of a BERT looks while it fills in the [MASK]s of a text.

    The drawing is a page to explore (.html), which has the BERT's name, or a picture (.png).
    """
    from utils.visualize.attention import Pair, show_map  # imports Matplotlib, which is slow

    filled, bert = filler.fill(text, 1), filler.net.bert
    with recorded_weights([cast(EncoderBlock, block).self_attention for block in bert.encoder]) as layers:
        bert(torch.tensor([filled.ids], device=next(bert.parameters()).device))
    tokens = [filler.shown(token) for token in filled.ids]
    attention = AttentionMap(tokens, tokens, {"self": [weights[0].float().cpu() for weights in layers]})
    show_map(attention, Pair(text, filled.text, filler.language, filler.language, name), path)
