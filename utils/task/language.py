"""Language modelling: documents as streams, a Transformer-XL, next-token prediction, word perplexity."""

from collections.abc import Sequence
from pathlib import Path

from models.transformer_xl import TransformerXL
from utils.config import LanguageConfig
from utils.dataset.corpus import Split
from utils.dataset.monolingual import prepare_monolingual
from utils.dataset.stream import SegmentBatch, StreamSampler
from utils.evaluation.word_perplexity import WordPerplexity
from utils.task.conclusion import Trained, score_best
from utils.task.task import Say
from utils.text.pair import TokenizerPair, load_tokenizers
from utils.training.recurrent_objective import RecurrentObjective
from utils.training.validation import Judge


class LanguageTask:
    """A text to train and score on.

    Args:
        config: all settings.
        source: a run whose vocabulary is used, when training resumes or starts from one.
        say: called with a line about what takes time.
    """

    objective = RecurrentObjective()
    unit = "tok"

    def __init__(self, config: LanguageConfig, source: Path | None, say: Say) -> None:
        config.training.require_score()
        self.config = config
        self.corpus = corpus = prepare_monolingual(config.data)
        tokenizer = corpus.tokenizer(config.tokenizer, say) if source is None else load_tokenizers(source).src
        self.vocabulary = TokenizerPair(tokenizer, tokenizer)
        self.fingerprint = corpus.fingerprint()
        self.sizes = {"source": len(tokenizer)}
        self.sampler, self._dev, self._test = (
            StreamSampler(corpus.tokens(split, tokenizer, say), config.batch, config.training.seed)
            for split in ("train", "dev", "test")
        )

    def build(self) -> TransformerXL:
        """Build a Transformer-XL."""
        return TransformerXL(self.config.model, len(self.vocabulary.src))

    def _judged(self, split: Split, sampler: StreamSampler) -> tuple[Sequence[SegmentBatch], Judge]:
        batches = sampler.all()
        return batches, WordPerplexity(self.corpus, split, batches)

    def validation(self, net: TransformerXL) -> tuple[Sequence[SegmentBatch], Judge]:  # noqa: ARG002 (the loss suffices)
        """Return the dev text, and what computes its word perplexity from the loss."""
        return self._judged("dev", self._dev)

    def conclude(self, trained: Trained, folder: Path, say: Say) -> None:
        """Score the best weights on the test text by word perplexity."""
        test, judge = self._judged("test", self._test)
        text = f"{self.corpus.name} {self.corpus.language}"
        about = {"task": self.config.task, "text": text}
        score_best(trained, folder, self.config, about, test, judge, say)
        say(f'\nContinue a text with it: python -m utils.task.generate --run {folder} "TEXT"')
