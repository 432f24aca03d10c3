"""Language modelling: documents as streams, a Transformer-XL, the next token, perplexity by the word."""

from collections.abc import Sequence
from pathlib import Path

from models.transformer_xl import TransformerXL
from utils.conclusion import Judge, Trained, score_best
from utils.config import LanguageConfig
from utils.dataset.corpus import Split
from utils.dataset.monolingual import prepare_monolingual
from utils.dataset.stream import SegmentBatch, StreamSampler
from utils.evaluation.word_perplexity import WordPerplexity
from utils.task.task import Say
from utils.text.pair import TokenizerPair, load_tokenizers
from utils.training.recurrent_objective import RecurrentObjective


class LanguageTask:
    """A text to learn from, and to be scored on.

    Args:
        config: all settings.
        source: a run whose vocabulary is used, where there is one to go on from.
        say: is told what takes time.
    """

    objective = RecurrentObjective()
    unit = "tok"

    def __init__(self, config: LanguageConfig, source: Path | None, say: Say) -> None:
        config.training.require_score()
        self.config = config
        self.corpus = corpus = prepare_monolingual(config.data)
        tokenizer = corpus.tokenizer(config.tokenizer, say) if source is None else load_tokenizers(source).src
        self.vocabulary = TokenizerPair(tokenizer, tokenizer)
        self.sizes = {"source": len(tokenizer)}
        self.sampler, self._dev, self._test = (
            StreamSampler(corpus.tokens(split, tokenizer, say), config.batch, config.training.seed)
            for split in ("train", "dev", "test")
        )

    def build(self) -> TransformerXL:
        """A Transformer-XL."""
        return TransformerXL(self.config.model, len(self.vocabulary.src))

    def _judged(self, split: Split, sampler: StreamSampler) -> tuple[Sequence[SegmentBatch], Judge]:
        batches = sampler.all()
        return batches, WordPerplexity(self.corpus, split, batches)

    def validation(self, net: TransformerXL) -> tuple[Sequence[SegmentBatch], Judge]:  # noqa: ARG002 (the loss says all)
        """Perplexity of the dev text by the word."""
        return self._judged("dev", self._dev)

    def conclude(self, trained: Trained, folder: Path, say: Say) -> None:
        """Perplexity of the test text by the word."""
        test, judge = self._judged("test", self._test)
        text = f"{self.corpus.name} {self.corpus.language}"
        about = {"task": self.config.task, "text": text}
        score_best(trained, folder, self.config, about, test, judge, say)
        say(f'\nGo on with it: python -m utils.task.generate --run {folder} "TEXT"')
