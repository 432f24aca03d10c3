"""Masked-language modelling: texts in document order, a BERT, its two losses, prediction accuracy."""

from collections.abc import Sequence
from pathlib import Path

from models.bert import BertForPreTraining
from utils.config import MaskedLanguageConfig
from utils.dataset.masked import MaskedBatch, MaskedSampler
from utils.dataset.monolingual import prepare_monolingual
from utils.evaluation.accuracy import MaskedAccuracy
from utils.task.conclusion import Trained, score_best
from utils.task.task import Say
from utils.text.pair import TokenizerPair, load_tokenizers
from utils.training.masked_objective import MaskedLanguageObjective
from utils.training.validation import Judge

# For masks and sentence pairs of dev and test text, so that runs with different seeds see the same examples.
_HELD_OUT_SEED = 1


class MaskedLanguageTask:
    """A text to train and score on.

    Args:
        config: all settings.
        source: a run whose vocabulary is used, when training resumes or starts from one.
        say: called with a line about what takes time.
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
        self.fingerprint = corpus.fingerprint()
        self.sizes = {"source": len(tokenizer)}
        self.sampler, self._dev, self._test = (
            MaskedSampler(
                corpus.tokens(split, tokenizer, say),
                tokenizer,
                config.masking,
                batch.tokens_per_batch,
                batch.max_tokens,
                config.training.seed if split == "train" else _HELD_OUT_SEED,
                batch.length_multiple,
                batch.sentences_per_batch,
            )
            for split in ("train", "dev", "test")
        )

        for held_out in (self._dev, self._test):
            held_out.epoch(0)  # a text without examples is refused now, not after the training

    def build(self) -> BertForPreTraining:
        """Build a BERT with both heads; its one token beyond the vocabulary is the mask."""
        return BertForPreTraining(self.config.model, len(self.vocabulary.src) + 1)

    def validation(self, net: BertForPreTraining) -> tuple[Sequence[MaskedBatch], Judge]:
        """Return the dev text, and what scores a network on its masked tokens and next sentences."""
        dev = self._dev.all()
        return dev, MaskedAccuracy(net, dev, self.vocabulary.src)

    def conclude(self, trained: Trained, folder: Path, say: Say) -> None:
        """Score the best weights on the test text, and show some sentences as the network fills them in."""
        test = self._test.all()
        judge = MaskedAccuracy(trained.net, test, self.vocabulary.src, n_samples=5)
        text = f"{self.corpus.name} {self.corpus.language}"
        about = {"task": self.config.task, "text": text}
        for sample in score_best(trained, folder, self.config, about, test, judge, say).samples:
            say("".join(f"\n  {line}" for line in sample.lines()))
        say(f'\nFill in with it: python -m utils.task.fill_in --run {folder} "TEXT WITH A [MASK]"')
