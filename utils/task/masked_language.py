"""Masked-language modelling: texts in document order, a BERT, its two losses, how often it guesses right."""

from collections.abc import Sequence
from pathlib import Path

from models.bert import BertForPreTraining
from utils.conclusion import Judge, Trained, score_best
from utils.config import MaskedLanguageConfig
from utils.dataset.masked import MaskedBatch, MaskedSampler
from utils.dataset.monolingual import prepare_monolingual
from utils.evaluation.accuracy import MaskedAccuracy
from utils.task.task import Say
from utils.text.pair import TokenizerPair, load_tokenizers
from utils.training.masked_objective import MaskedLanguageObjective


class MaskedLanguageTask:
    """A text to learn from, and to be scored on.

    Args:
        config: all settings.
        source: a run whose vocabulary is used, where there is one to go on from.
        say: is told what takes time.
    """

    objective = MaskedLanguageObjective()
    unit = "masked tok"

    def __init__(self, config: MaskedLanguageConfig, source: Path | None, say: Say) -> None:
        config.training.require_score("accuracy")
        batch = config.batch
        batch.require_positions(config.model.max_length)
        if config.masking.next_sentence and config.model.n_segments < 2:
            raise ValueError(
                f"n_segments={config.model.n_segments} has no room for a second sentence: give --model.n_segments 2, "
                "or --masking.next_sentence false"
            )
        self.config = config
        self.corpus = corpus = prepare_monolingual(config.data)
        tokenizer = corpus.tokenizer(config.tokenizer, say) if source is None else load_tokenizers(source).src
        self.vocabulary = TokenizerPair(tokenizer, tokenizer)
        self.sizes = {"source": len(tokenizer)}
        self.sampler, self._dev, self._test = (
            MaskedSampler(
                corpus.tokens(split, tokenizer, say),
                tokenizer,
                config.masking,
                batch.tokens_per_batch,
                batch.max_tokens,
                config.training.seed,
                batch.length_multiple,
                batch.sentences_per_batch,
            )
            for split in ("train", "dev", "test")
        )

        for held_out in (self._dev, self._test):
            held_out.epoch(0)  # what has no examples is refused before the training and not behind it

    def build(self) -> BertForPreTraining:
        """A BERT with both heads; one more token than the vocabulary has hides others."""
        return BertForPreTraining(self.config.model, len(self.vocabulary.src) + 1)

    def validation(self, net: BertForPreTraining) -> tuple[Sequence[MaskedBatch], Judge]:
        """How many hidden tokens and next sentences of the dev text it guesses."""
        dev = self._dev.all()
        return dev, MaskedAccuracy(net, dev, self.vocabulary.src)

    def conclude(self, trained: Trained, folder: Path, say: Say) -> None:
        """Scores of the test text, and some sentences with what the network fills in."""
        test = self._test.all()
        judge = MaskedAccuracy(trained.net, test, self.vocabulary.src, n_samples=5)
        text = f"{self.corpus.name} {self.corpus.language}"
        about = {"task": self.config.task, "text": text}
        for sample in score_best(trained, folder, self.config, about, test, judge, say).samples:
            say("".join(f"\n  {line}" for line in sample.lines()))
        say(f'\nFill in with it: python -m utils.task.fill_in --run {folder} "TEXT WITH A [MASK]"')
