"""Sub-words: SentencePiece (Kudo & Richardson 2018) as a unigram model (Kudo 2018) or BPE (Sennrich et al. 2016)."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import sentencepiece

from const.token import BOS, BOS_ID, EOS, EOS_ID, PAD, PAD_ID, UNK, UNK_ID
from utils.file import atomic_file

SUFFIX = ".model"
_MOST_TRAINING_LINES = 400_000  # more change the pieces little and take minutes


class SentencePieceTokenizer:
    """A trained SentencePiece model.

    Args:
        model: the serialised model.
    """

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def train(
        cls,
        lines: Sequence[str],
        kind: Literal["unigram", "bpe"],
        vocab_size: int,
        character_coverage: float,
        normalization: str,
    ) -> "SentencePieceTokenizer":
        """Learn pieces from lines; of very many lines, every k-th.

        Raises:
            ValueError: fewer pieces than characters are asked for, or (BPE) more than the lines hold.
        """
        writer = io.BytesIO()
        stride = -(-len(lines) // _MOST_TRAINING_LINES) or 1
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines[::stride]),
                model_writer=writer,
                model_type=kind,
                vocab_size=vocab_size,
                character_coverage=character_coverage,
                normalization_rule_name=normalization,
                pad_id=PAD_ID,
                unk_id=UNK_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                pad_piece=PAD,
                unk_piece=UNK,
                bos_piece=BOS,
                eos_piece=EOS,
                hard_vocab_limit=kind == "bpe",  # a unigram model may end with fewer pieces, BPE counts its merges
                max_sentence_length=16384,
                minloglevel=2,
            )
        except RuntimeError as error:
            reason = str(error).strip().rsplit("] ", 1)[-1]
            raise ValueError(
                f"tokenizer.vocab_size={vocab_size} does not fit {len(lines)} lines of training text: {reason}"
            ) from error
        return cls(writer.getvalue())

    @classmethod
    def load(cls, path: Path) -> "SentencePieceTokenizer":
        """Read what `save` wrote."""
        return cls(path.read_bytes())

    def save(self, path: Path) -> None:
        """Write the model; any program that speaks SentencePiece can read it."""
        with atomic_file(path.with_suffix(SUFFIX)) as draft:
            draft.write_bytes(self._model)

    def __len__(self) -> int:
        """Size of the vocabulary."""
        return int(self._processor.get_piece_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, on all cores."""
        return self._processor.encode(list(texts))

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Text of each sequence; an unknown piece becomes ⁇."""
        return self._processor.decode([list(sequence) for sequence in ids]) if len(ids) else []

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The pieces; ▁ marks the beginning of a word."""
        return [self._processor.id_to_piece(int(i)) for i in ids]
