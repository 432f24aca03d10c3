"""Translation: pairs of sentences, a Transformer, cross-entropy of the target, BLEU of decoded text."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from models.bert import BertConfig
from models.transformer import Transformer
from utils.conclusion import Judge, Trained, score_translator
from utils.config import Config
from utils.dataset.batch import Batch
from utils.dataset.bucket_sampler import BucketSampler, require_positions
from utils.dataset.corpus import prepare_corpus
from utils.dataset.parallel_text import read_parallel
from utils.dataset.token_cache import cached_tokenizers, cached_tokens, training_tokens
from utils.evaluation.validator import Validator
from utils.run import Run, load_run
from utils.task.task import Say
from utils.text.pair import TokenizerPair, load_tokenizers
from utils.trained import load_bert, pretrained_shape
from utils.training.objective import build_objective


def with_pretrained_encoder(config: Config, bert_run: Path) -> Config:
    """The same settings, with the architecture of the BERT that the encoder begins with.

    Raises:
        ValueError: no such run, or a joint vocabulary, which a BERT of one language does not have.
    """
    if config.tokenizer.joint:
        raise ValueError(
            f"init_encoder={bert_run} brings a vocabulary of the source alone: give --tokenizer.joint false"
        )
    bert = BertConfig(**pretrained_shape(bert_run, config.model, config.data.src_lang))
    return replace(config, model=replace(config.model, bert=bert))


class TranslationTask:
    """Pairs of sentences to learn from, and to be scored on.

    Args:
        config: all settings.
        source: a run whose vocabulary is used, where there is one to go on from.
        say: is told what takes time.
    """

    unit = "tok"

    def __init__(self, config: Config, source: Path | None, say: Say) -> None:
        config.training.require_score("bleu", "chrf")
        # a run to go on from has settings, vocabulary and weights of its BERT in itself
        self._pretrained = encoder = config.model.init_encoder if source is None else None
        if encoder is not None:
            config = with_pretrained_encoder(config, encoder)
        self.config = config
        plan, batch, model = config.training, config.batch, config.model
        self.objective = build_objective(plan.label_smoothing, plan.r_drop)
        self.corpus = prepare_corpus(config.data)
        if source is not None:
            self.vocabulary = load_tokenizers(source)
        else:
            self.vocabulary = cached_tokenizers(self.corpus, config.data, config.tokenizer, say)
            if encoder is not None:
                self.vocabulary = TokenizerPair(load_tokenizers(encoder).src, self.vocabulary.tgt)
        self.sizes = {"source": len(self.vocabulary.src), "target": len(self.vocabulary.tgt)}
        sampling = config.tokenizer.sampling
        train = training_tokens(self.corpus, config.data, self.vocabulary, sampling, plan.seed, say)
        self.sampler = BucketSampler(
            train,
            batch.tokens_per_batch,
            batch.max_tokens,
            plan.seed,
            batch.length_multiple,
            batch.sentences_per_batch,
        )
        dev, test = (cached_tokens(self.corpus, split, config.data, self.vocabulary, say) for split in ("dev", "test"))
        for pairs, files in ((dev, self.corpus.dev), (test, self.corpus.test)):
            if model.positions == "learned":
                require_positions(pairs.src, files.src, model.max_length, "model.max_length")
                require_positions(pairs.tgt, files.tgt, model.max_length, "model.max_length")
            if model.bert is not None:
                require_positions(pairs.src, files.src, model.bert.max_length, "model.bert.max_length")
        if model.positions == "learned":
            batch.require_positions(model.max_length, "model.max_length")
        if model.bert is not None:
            batch.require_positions(model.bert.max_length, "model.bert.max_length")
        self._dev, self._test = (BucketSampler(pairs, batch.tokens_per_batch) for pairs in (dev, test))

    def build(self) -> Transformer:
        """A Transformer; its encoder is that of another run where one is asked for."""
        model = self.config.model
        net = Transformer(model, len(self.vocabulary.src), len(self.vocabulary.tgt))
        if self._pretrained is not None:
            net.src_embedding.load_state_dict(load_bert(self._pretrained).net.bert.state_dict())
        return net

    def validation(self, net: Transformer) -> tuple[Sequence[Batch], Judge]:
        """Greedy translations of the first dev sentences, scored."""
        plan = self.config.training
        run = Run(Path(), self.config, self.vocabulary, net)
        greedy = replace(self.config.search, beam_size=1)
        text = read_parallel(self.corpus.dev)[: plan.bleu_sentences]
        judge = Validator(lambda: run.translator(greedy), text, self.corpus, plan.n_samples)
        return self._dev.all(), judge

    def conclude(self, trained: Trained, folder: Path, say: Say) -> None:
        """Scores of the test set, some translations, and a picture of what the decoder looked at."""
        best = load_run(folder, next(trained.net.parameters()).device)
        score_translator(trained, best, self.corpus, self._test.all(), say)
