"""Translation: pairs of sentences, a Transformer, cross-entropy of the target, BLEU of decoded text."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from config.model import BertConfig
from models.transformer import Transformer
from utils.config import TranslationConfig
from utils.dataset.batch import Batch, BothDirections, BucketSampler, Sampler, require_positions
from utils.dataset.corpus import (
    Corpus,
    cached_tokenizers,
    cached_tokens,
    check_own_text,
    prepare_corpus,
    refuse_other_languages,
    training_tokens,
)
from utils.dataset.text import read_parallel
from utils.evaluation.judge import Validator
from utils.run import Run, load_bert, pretrained_shape, translator_of
from utils.search.translator import Translator
from utils.task.task import Say, Trained, score_translator
from utils.text.tokenizer import TokenizerPair, load_tokenizers
from utils.training.loss import build_objective
from utils.training.report import Validate


def with_pretrained_encoder(config: TranslationConfig, bert_run: Path) -> TranslationConfig:
    """Return the settings with the architecture of the BERT that the encoder is initialised from."""
    if config.tokenizer.joint:
        raise ValueError(f"init_encoder={bert_run} has a vocabulary of the source only: give --tokenizer.joint false")
    bert = BertConfig(**pretrained_shape(bert_run, config.model, config.data.src_lang))
    return replace(config, model=replace(config.model, bert=bert))


class TranslationTask:
    """Sentence pairs to train and score on.

    Args:
        config: all settings.
        source: a run whose vocabulary is used, when training resumes or starts from one.
        say: called with a line about what takes time.
    """

    unit = "tok"

    def __init__(self, config: TranslationConfig, source: Path | None, say: Say) -> None:
        config.training.require_score("bleu", "chrf")
        # a run to start from has the settings, vocabulary and weights of its BERT already
        self._pretrained = encoder = config.model.init_encoder if source is None else None
        if encoder is not None:
            config = with_pretrained_encoder(config, encoder)
        if config.model.tie == "all" and not config.tokenizer.joint:
            raise ValueError(
                "tie=all shares the embeddings of both languages, which needs one vocabulary for both: give "
                "--tokenizer.joint true, or --model.tie target"
            )
        if config.data.both_directions and not config.tokenizer.tag:
            raise ValueError(
                "both_directions=true needs a token that names the one that is meant: give --tokenizer.tag true"
            )
        self.config = config
        plan, batch, model = config.training, config.batch, config.model
        self.objective = build_objective(plan.label_smoothing, plan.r_drop)
        refuse_other_languages(config.data)
        self.corpus = prepare_corpus(config.data)
        check_own_text(config.data, self.corpus, say)
        if source is not None:
            self.vocabulary = load_tokenizers(source)
            if config.tokenizer.tag:
                self.vocabulary = self.vocabulary.into(config.data.tgt_lang)
        else:
            self.vocabulary = cached_tokenizers(self.corpus, config.data, config.tokenizer, say)
            if encoder is not None:
                self.vocabulary = TokenizerPair(load_tokenizers(encoder).src, self.vocabulary.tgt)
        self.fingerprint = self.corpus.fingerprint() + ("-both" if config.data.both_directions else "")
        self.sizes = {"source": len(self.vocabulary.src), "target": len(self.vocabulary.tgt)}

        def sampler(corpus: Corpus, vocabulary: TokenizerPair) -> BucketSampler:
            train = training_tokens(corpus, config.data, vocabulary, config.tokenizer.sampling, plan.seed, say)
            return BucketSampler(
                train,
                batch.tokens_per_batch,
                batch.max_tokens,
                plan.seed,
                batch.length_multiple,
                batch.sentences_per_batch,
            )

        forward = sampler(self.corpus, self.vocabulary)
        self.sampler: Sampler[Any] = forward
        if config.data.both_directions:
            backward = sampler(self.corpus.reversed(), self.vocabulary.into(config.data.src_lang))
            self.sampler = Sampler(lambda n: BothDirections(forward.epoch(n), backward.epoch(n), (plan.seed, n)))
        dev, test = (cached_tokens(self.corpus, split, config.data, self.vocabulary, say) for split in ("dev", "test"))
        learned = {"model.max_length": model.max_length} if model.positions == "learned" else {}
        if model.bert is not None:
            learned["model.bert.max_length"] = model.bert.max_length
        for option, n_positions in learned.items():
            for pairs, files in ((dev, self.corpus.dev), (test, self.corpus.test)):
                require_positions(pairs.src, files.src, n_positions, option)
                if option == "model.max_length":  # a BERT reads the source only
                    require_positions(pairs.tgt, files.tgt, n_positions, option)
            batch.require_positions(n_positions, option)
        self._dev, self._test = (BucketSampler(pairs, batch.tokens_per_batch) for pairs in (dev, test))

    def build(self) -> Transformer:
        """Build a Transformer, its encoder initialised from another run if requested."""
        model = self.config.model
        net = Transformer(model, len(self.vocabulary.src), len(self.vocabulary.tgt))
        if self._pretrained is not None:
            net.src_embedding.load_state_dict(load_bert(self._pretrained).net.bert.state_dict())
        return net

    def validation(self, net: Transformer) -> tuple[Sequence[Batch], Validate]:
        """Return the dev text, and what scores greedy translations of its first sentences."""
        plan = self.config.training
        greedy = replace(self.config.search, beam_size=1)
        text = read_parallel(self.corpus.dev)[: plan.bleu_sentences]

        def translator() -> Translator:
            return translator_of([net], self.vocabulary, [self.config], greedy)

        return self._dev.all(), Validator(translator, text, self.corpus, plan.n_samples)

    def test_and_save(self, trained: Trained, folder: Path, say: Say) -> None:
        """Score the best weights on the test set, show some translations, and draw what the decoder attended to."""
        best = Run(folder, self.config, self.vocabulary, trained.net)
        score_translator(trained, best, self.corpus, self._test.all(), say)
