"""Translation: pairs of sentences, a network, cross-entropy of the target, BLEU of decoded text."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from typing import Any

from config.model import BertConfig
from config.search import SearchConfig
from const.token import EOS
from models.translation_model import TranslationModel
from utils.command import Log, typed_command
from utils.config import TranslationConfig
from utils.dataset.batch import BucketSampler, Sampler, both_directions, require_positions
from utils.dataset.check import check_own_text, refuse_other_languages
from utils.dataset.corpus import Corpus, facts, prepare_corpus
from utils.dataset.ids import TokenPairs, cached_tokenizers, cached_tokens, training_tokens
from utils.dataset.text import ParallelFiles, ParallelText, lines_of, read_parallel
from utils.device import pick_device
from utils.evaluation.metric import corpus_metrics, measure
from utils.evaluation.validation import translation_scores
from utils.file import write_lines
from utils.load import Run, build_network, load_bert, pretrained_shape
from utils.run import ATTENTION, CONFIG, CURVE, TEST, TRANSLATIONS, WATCH_PAGE
from utils.search.forced import attention_weights
from utils.search.translator import Translator
from utils.task.task import HeldOut, Task, Weights
from utils.text.sentence import split_sentences
from utils.text.tokenizer import TokenizerPair, Vocabulary, load_tokenizers
from utils.text.words import WordPair, Words
from utils.training.loss import TranslationObjective
from utils.training.report import Decoration, Observer, Sample, Validate, Validation, attempt, spread
from utils.visualize.attention import draw_cross_attention
from utils.visualize.explain import Watch, easy_to_follow

KEPT = 20  # translations of the test text that are kept with their sources and references
SHOWN = 5  # of these
_MIN_SEVERAL = 20  # lines of several sentences, for a score that says something
_WORTH_A_RISK = 1.0  # BLEU of these lines: as a whole, a text of several sentences may lose one, which few lines show
_MIN_LIKELY, _MAX_LIKELY = 100, 300  # lines, of which one in a hundred may be less likely than the bound


class TranslationTask(Task):
    """Sentence pairs to train and score on."""

    unit = "tok"
    vocabulary: TokenizerPair

    def __init__(self, config: TranslationConfig, source: Path | None, log: Log) -> None:
        config.training.require_score("bleu", "chrf")
        # a run to start from has the settings, vocabulary and weights of its BERT already
        self._pretrained = encoder = config.model.init_encoder if source is None else None
        _refuse_contradictions(config, encoder)
        if encoder is not None:
            bert = BertConfig(**pretrained_shape(encoder, config.model, config.data.src_lang))
            config = replace(config, model=replace(config.model, bert=bert))
        self.config: TranslationConfig = config
        training, data = config.training, config.data
        self.objective = TranslationObjective(training.label_smoothing, training.r_drop)
        refuse_other_languages(data)
        self.corpus = corpus = prepare_corpus(data)
        check_own_text(corpus, log)
        if source is not None:
            self.vocabulary = load_tokenizers(source)
            if config.tokenizer.tag:
                self.vocabulary = self.vocabulary.into(data.tgt_lang)
        else:
            self.vocabulary = cached_tokenizers(corpus, config.tokenizer, log)
            if encoder is not None:
                self.vocabulary = TokenizerPair(load_tokenizers(encoder).src, self.vocabulary.tgt)
        self.vocabulary = self.vocabulary.with_tag(data.tag)
        text_tags = self.vocabulary.with_tag(data.more_tag).text_tags  # refuses one that it does not have
        self.dev = corpus.dev
        (src, tgt), (src_file, tgt_file) = self.vocabulary, corpus.train
        self.reads = {"source": (src, src_file), "target": (tgt, tgt_file)}
        self.fingerprint = corpus.fingerprint() + ("-both" if data.both_directions else "")
        if data.tag or data.more_tag:
            self.fingerprint += f"-{data.tag}-{data.more_tag}"
        self.sizes = {"source": len(src), "target": len(tgt)}
        direction, tags = "-".join(data.languages), {"tags": text_tags} if text_tags else {}
        identity = {"corpus": corpus.name, "direction": direction, "beam": config.search.beam_size}
        self.identity = {**identity, **tags, **facts(corpus.fingerprint(), corpus.rebuilt)}

        sampling, on_a_gpu = config.tokenizer.sampling, pick_device(training.device).type == "cuda"

        def sampler(corpus: Corpus, vocabulary: TokenizerPair) -> BucketSampler:
            text = training_tokens(corpus, vocabulary, sampling, training.seed, log, ahead=on_a_gpu)
            return self.bucket_sampler(text, training.seed)

        forward = sampler(corpus, self.vocabulary)
        train: Sampler[Any] = forward
        if data.both_directions:
            backward = sampler(corpus.reversed(), self.vocabulary.into(data.src_lang))
            train = Sampler(lambda n: both_directions(forward.epoch(n), backward.epoch(n), (training.seed, n)))
        dev, test = (cached_tokens(corpus, split, self.vocabulary, log) for split in ("dev", "test"))
        self._require_positions((dev, test), (corpus.dev, corpus.test))
        self.learn_from(train, *(BucketSampler(pairs, config.batch.tokens_per_batch) for pairs in (dev, test)))

    def _require_positions(self, texts: Iterable[TokenPairs], files: Iterable[ParallelFiles]) -> None:
        """Refuse lines and settings of batches that a learned table of positions has no room for."""
        for setting, n_positions in self.config.model.learned_positions().items():
            option = f"model.{setting}"
            for pairs, file in zip(texts, files, strict=True):
                require_positions(pairs.src, file.src, n_positions, option)
                if setting == "max_length":  # a BERT reads the source only
                    require_positions(pairs.tgt, file.tgt, n_positions, option)
            self.config.batch.require_positions(n_positions, option)

    def vocabularies(self) -> Sequence[Vocabulary]:
        """Return the tokenizers and, of a pre-tokenized text, what separates the words of plain text alike."""
        if not self.config.data.is_tokenized:
            return [self.vocabulary]
        sides = map(Words.learn, self.config.data.languages, map(lines_of, self.corpus.train))
        return [self.vocabulary, WordPair(*sides)]

    def build(self) -> TranslationModel:
        """Build the network, a Transformer's encoder initialised from another run if requested."""
        net = build_network(self.config, *self.sizes.values())
        if self._pretrained is not None:
            net.get_submodule("bert").load_state_dict(load_bert(self._pretrained).net.bert.state_dict())
        return net

    def _as_run(self, net: TranslationModel) -> Run:
        return Run(Path(), self.config, self.vocabulary, net)  # not of its folder, whose weights may be older

    def _translator(self, net: TranslationModel, search: SearchConfig) -> Translator:
        return self._as_run(net).translator(search, self.config.training.precision)

    def scored_by(self) -> Sequence[object]:
        """Return the text, how much of it is translated, and the signatures of the metrics, which score a sentence."""
        references = read_parallel(self.corpus.dev).tgt[: self.config.training.bleu_sentences]
        metrics = measure(references[:1], references[:1], corpus_metrics(self.corpus))
        return [*super().scored_by(), len(references), *(metric.signature for metric in metrics)]

    def scorer(self, net: TranslationModel, split: HeldOut) -> Validate:
        """Return what scores translations; on dev, greedy ones of the first sentences."""
        text, search, n_samples = read_parallel(getattr(self.corpus, split)), self.config.search, KEPT
        if split == "dev":
            training = self.config.training
            search = replace(search, beam_size=1, by_sentence=False)
            text, n_samples = text[: training.bleu_sentences], training.n_samples
        # with the weights of the moment
        return lambda loss: translation_scores(self._translator(net, search), text, self.corpus, n_samples, loss)

    def observers(self, net: TranslationModel, averaged: Weights, folder: Path, step: int) -> Sequence[Observer]:
        """Return what keeps some dev sentences for a page, if it is to be made."""
        if not self.config.training.watch:
            return ()

        def translator() -> Translator:
            with averaged():
                return self._translator(net, replace(self.config.search, beam_size=1))

        text = easy_to_follow(read_parallel(self.corpus.dev), self.config.training.watch)
        languages = self.config.data.languages
        return [Decoration(f"the page {WATCH_PAGE}", lambda: Watch(folder, step, text, translator, languages))]

    def choose_on_dev(self, net: TranslationModel, folder: Path, log: Log) -> None:
        """Choose from dev text whether several sentences are translated as a whole, and what is unlikely."""
        self._choose_by_sentence(net, log)
        dev, search = read_parallel(self.corpus.dev)[:_MAX_LIKELY], self.config.search
        if len(dev.src) >= _MIN_LIKELY:
            translations = self._translator(net, search).translate(dev.src)
            *_, bound = quantiles([translation.perplexity for translation in translations], n=100)
            self.config = replace(self.config, search=replace(search, max_perplexity=round(bound, 2)))
        self.config.save(folder / CONFIG)

    def _choose_by_sentence(self, net: TranslationModel, log: Log) -> None:
        dev, own = read_parallel(self.corpus.dev), self.config.search
        several = [i for i, source in enumerate(dev.src) if len(split_sentences(source)) > 1]
        if not own.by_sentence or len(several) < _MIN_SEVERAL:
            return
        text = ParallelText([dev.src[i] for i in several], [dev.tgt[i] for i in several])

        def bleu(search: SearchConfig) -> float:
            return translation_scores(self._translator(net, search), text, self.corpus).scores["bleu"]

        apart, whole = bleu(own), bleu(as_a_whole := replace(own, by_sentence=False))
        log(f"{len(several)} dev lines of several sentences: BLEU {apart:.2f} one by one, {whole:.2f} as a whole")
        if whole > apart + _WORTH_A_RISK:
            self.config = replace(self.config, search=as_a_whole)

    def show(self, net: TranslationModel, folder: Path, test: Validation, log: Log) -> None:
        """Write the translations, show some, and draw what the decoder attended to."""
        write_lines(folder / TRANSLATIONS, test.translations)
        log("")
        shown = spread(test.samples, SHOWN)
        for sample in shown:
            log(f"  {sample.source}\n  → {sample.translation}\n    ({sample.reference})\n")
        sample = legible(shown)
        written, attends = [TRANSLATIONS, TEST, CURVE], self.config.model.has_cross_attention
        if attends:
            attempt("a picture of its attention", lambda: draw_sample(self._as_run(net), sample, folder / ATTENTION))
            written.append(ATTENTION)
        log("\n".join(f"  {folder / name}" for name in written))
        log(what_next(folder, sample.source, attends))
        if self.config.training.watch:
            log(f"  watch it learn, update by update: open in a browser\n    {folder / WATCH_PAGE}")


def legible(samples: Sequence[Sample]) -> Sample:
    """Return a correct translation of a length that is easy to read, if there is one."""
    return min(samples, key=lambda s: (s.translation != s.reference, abs(len(s.translation) - 60)))


def draw_sample(run: Run, sample: Sample, picture: Path) -> None:
    """Draw what a decoder attended to while it wrote a translation."""
    src, tgt = run.tokenizers
    src_ids, tgt_ids = (
        side.encode([text])[0][: run.window - 1] for side, text in ((src, sample.source), (tgt, sample.translation))
    )
    weights = attention_weights(run.model, src_ids, tgt_ids)["cross"]
    draw_cross_attention(weights, [*src.tokens(src_ids), EOS], [*tgt.tokens(tgt_ids), EOS], picture)


def _refuse_contradictions(config: TranslationConfig, encoder: Path | None) -> None:
    """Refuse settings of groups that contradict each other, with an encoder to be initialised from this run or none."""
    joint = config.tokenizer.joint
    if config.optimizer.kind == "muon" and not config.model.has_blocks:
        raise ValueError("optimizer.kind=muon is for a Transformer's blocks: give --optimizer.kind adam")
    if encoder is not None and joint:
        raise ValueError(f"init_encoder={encoder} has a vocabulary of the source only: give --tokenizer.joint false")
    if config.model.tie == "all" and not joint:
        raise ValueError(
            "tie=all shares the embeddings of both languages, which needs one vocabulary for both: give "
            "--tokenizer.joint true, or --model.tie target"
        )
    if config.tokenizer.kind == "word" and (tag := config.data.tag or config.data.more_tag):
        raise ValueError(f"tag {tag} is a piece, and kind=word has none: give --tokenizer.kind unigram or bpe")
    if config.data.both_directions and not config.tokenizer.tag:
        raise ValueError(
            "both_directions=true needs a token that names the one that is meant: give --tokenizer.tag true"
        )


def what_next(folder: Path, sentence: str, attends: bool = True) -> str:
    """List what can be done with a translator that has just been trained: commands that work as they are."""
    run, text = shlex.quote(str(folder)), shlex.quote(sentence)
    if text.startswith(("-", "'-")):
        text = f"-- {text}"
    translate, serve, evaluate = map(typed_command, ("translate.py", "serve.py", "evaluate.py"))
    look = f"  see what every attention head looks at:\n    {translate} --run {run} --attention attention.html {text}\n"
    return f"""
What next?
  translate:
    {translate} --run {run} {text}
{look if attends else ""}  translate line by line:
    {translate} --run {run}
  translate in a browser:
    {serve} --run {run}
  see its mistakes:
    {evaluate} run {run} --html report.html"""
