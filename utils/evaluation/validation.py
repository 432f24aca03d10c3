"""What a network gets right: at each validation of a training and, of minimal pairs, with the weights kept of each."""

from collections.abc import Iterable, Mapping, Sequence
from operator import gt
from pathlib import Path
from typing import NamedTuple

import torch
from sacrebleu.metrics.bleu import BLEU
from tqdm import tqdm

from const.token import PAD_ID
from models.bert import BertClassifier, BertForPreTraining
from utils.command import aligned, print_above_bars
from utils.dataset.corpus import Corpus, Split
from utils.dataset.embedded import MinimalPair
from utils.dataset.labelled import LabelledBatch
from utils.dataset.masked import MaskedBatch
from utils.dataset.monolingual import MonolingualCorpus, SegmentBatch
from utils.dataset.text import ParallelText, TextLines
from utils.evaluation.metric import bleu_tokenizer, corpus_metrics, measure
from utils.load import Run
from utils.run import KEPT_WEIGHTS, titles
from utils.search.forced import token_log_probs
from utils.search.translator import Translator
from utils.text.tokenizer import Tokenizer
from utils.training.checkpoint import WEIGHTS_SUFFIX, read_weights, step_files, step_of
from utils.training.report import Sample, Validate, Validation, perplexity, spread
from utils.visualize.curve import sheet

_N_MASKED_SAMPLES, _MAX_SAMPLE_LENGTH = 3, 40  # sentences that a BERT fills in; tokens


def translation_scores(
    translator: Translator, text: ParallelText, corpus: Corpus, n_samples: int = 0, loss: float = 0.0
) -> Validation:
    """Translate sentences and score them: decoded text, never teacher-forced tokens; `loss` is in nats per token."""
    translations = [translation.text for translation in translator.translate(text.src)]
    metrics = corpus_metrics(corpus)
    # by their names in logs and settings
    scored = measure(translations, text.tgt, {"bleu": metrics["BLEU"], "chrf": metrics["chrF2"]})
    samples = spread(list(map(Sample, text.src, text.tgt, translations)), n_samples)
    scores, signatures = {m.name: m.score for m in scored}, {m.name: m.signature for m in scored}
    return Validation(loss, scores, signatures, samples, translations)


@torch.inference_mode()
def masked_accuracy(
    net: BertForPreTraining, batches: Sequence[MaskedBatch], tokenizer: Tokenizer, loss: float
) -> Validation:
    """Return a network's accuracy on masked tokens and next sentences, in percent, and sentences that it fills in.

    `loss` is in nats per masked token.
    """
    n_right = n_masked = n_pairs_right = n_pairs = 0
    samples: list[Sample] = []
    device = next(net.parameters()).device
    for batch in (batch.to(device) for batch in batches):
        x = net.bert(batch.ids, batch.segments)
        masked = batch.target != PAD_ID
        guess = net.head(x[masked]).argmax(-1)
        n_right += int((guess == batch.target[masked]).sum())
        n_masked += len(guess)
        if batch.follows.numel():
            n_pairs_right += int((net.next_sentence(net.pooler(x)).argmax(-1) == batch.follows).sum())
            n_pairs += len(batch.follows)
        if len(samples) < _N_MASKED_SAMPLES and batch.ids.size(1) <= _MAX_SAMPLE_LENGTH:
            # the first row as the network reads it, as it was written, and as the network fills it in
            read, filled = batch.ids[0], batch.ids.masked_scatter(masked, guess)[0]
            written = torch.where(masked[0], batch.target[0], read)
            samples.append(Sample(*(_shown(ids.tolist(), tokenizer) for ids in (read, written, filled))))
    scores = {"accuracy": 100 * n_right / n_masked}
    if n_pairs:
        scores["next_sentence"] = 100 * n_pairs_right / n_pairs
    return Validation(loss, scores, samples=samples)


def _shown(ids: list[int], tokenizer: Tokenizer) -> str:
    n = len(tokenizer)
    return " ".join("[MASK]" if i == n else tokenizer.tokens([i])[0] for i in ids if i != PAD_ID)


@torch.inference_mode()
def class_accuracy(net: BertClassifier, batches: Sequence[LabelledBatch], loss: float) -> Validation:
    """Return the accuracy of a classifier in eval mode, in percent; `loss` is in nats per text."""
    device = next(net.parameters()).device
    rights = torch.cat([net(b.ids.to(device)).argmax(-1) == b.label.to(device) for b in batches])
    return Validation(loss, {"accuracy": 100 * int(rights.sum()) / len(rights)})


def word_perplexity(corpus: MonolingualCorpus, split: Split, batches: Iterable[SegmentBatch]) -> Validate:
    """Return what computes exp(nats of the whole text / words) from the loss in nats per token.

    It is comparable between vocabularies; words are as of BLEU, and ends of sentences.

    Args:
        batches: all batches that the network predicts in the split.
    """
    tokenize = BLEU(tokenize=bleu_tokenizer(corpus.language, corpus.pre_tokenized), force=True).tokenizer
    lines = TextLines(getattr(corpus, split))
    n_words = sum(len(tokenize(line).split()) + 1 for line in lines if line.strip())
    tokens_per_word = sum(batch.target_tokens for batch in batches) / n_words
    return lambda loss: Validation(loss, {"word_ppl": perplexity(loss * tokens_per_word)})


# Minimal pairs: how often a translator finds the right one of two translations likelier (Sennrich 2017). Nothing is
# searched for: the log-probabilities of both, given the source, are compared.

CHANCE = 50.0
Accuracy = dict[str, float]  # phenomenon -> percentage of its pairs
Pairs = Mapping[str, Sequence[MinimalPair]]  # by phenomenon


class Course(NamedTuple):
    """The accuracies of a run with its best weights, and with those kept of each validation, by updates."""

    run: str
    accuracy: Accuracy
    by_updates: dict[int, Accuracy]


def pair_accuracy(run: Run, pairs: Pairs) -> Accuracy:
    """Return how many pairs have a right translation that the present weights find likelier than the wrong one."""
    accuracy = {}
    for name, of_phenomenon in pairs.items():
        sources, *translations = zip(*of_phenomenon, strict=True)
        ids = run.tokenizers.src.encode(sources)
        right, wrong = (token_log_probs(run.model, ids, run.tokenizers.tgt.encode(side)) for side in translations)
        accuracy[name] = 100 * sum(map(gt, map(sum, right), map(sum, wrong))) / len(of_phenomenon)
    return accuracy


def pair_course(run: Run, pairs: Pairs) -> Course:
    """Score the best weights, then those kept of each validation; the network is left with the last of them."""
    name, kept = run.folder.resolve().name, step_files(run.folder / KEPT_WEIGHTS, WEIGHTS_SUFFIX)
    best, by_updates = pair_accuracy(run, pairs), dict[int, Accuracy]()
    with tqdm(kept, unit="validation", disable=None, leave=False) as bar:
        if bar.disable and kept:  # no terminal
            print_above_bars(f"{name}: asking the weights of {len(kept)} validations")
        for path in bar:
            run.model.load_state_dict(read_weights(path))
            by_updates[step_of(path)] = pair_accuracy(run, pairs)
    return Course(name, best, by_updates)


def pair_table(courses: Sequence[Course], pairs: Pairs) -> list[str]:
    """Return a line for each phenomenon, with a column for each run."""
    rows = [
        [name, f"{len(of_phenomenon):,}", *(f"{course.accuracy[name]:.1f}" for course in courses), f"{CHANCE:.1f}"]
        for name, of_phenomenon in pairs.items()
    ]
    head = ["phenomenon", "pairs", *titles([course.run for course in courses]), "chance"]
    return aligned([head, *rows], "l" + "r" * (len(head) - 1))


def draw_pair_courses(courses: Sequence[Course], picture: Path) -> None:
    """Draw the accuracies against the updates as a PNG, with a panel for each run and a line for each phenomenon."""
    with sheet(picture, (1.5 + 4 * len(courses), 4), columns=len(courses), dpi=110) as panels:
        for axes, title, course in zip(panels, titles([course.run for course in courses]), courses, strict=True):
            for name in course.accuracy:
                heights = [accuracy[name] for accuracy in course.by_updates.values()]
                axes.plot([*course.by_updates], heights, "o-", ms=2, lw=1.2, label=name)
            axes.axhline(CHANCE, color="black", lw=0.8, ls=":")
            axes.set(title=title, xlabel="updates", ylim=(0, 103))
            axes.grid(alpha=0.3)
        panels[0].set(ylabel="pairs with the right one likelier (%)")
        panels[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
