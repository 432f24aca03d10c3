"""Language modelling: a Transformer-XL, word perplexity; what it generates, and what its memory is worth."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

from config.data import StreamConfig
from config.search import SamplingConfig
from const.path import CORPUS
from const.token import BOS_ID, EOS_ID
from models.transformer_xl import Memory, TransformerXL
from utils.config import LanguageConfig
from utils.dataset.corpus import Split, facts
from utils.dataset.monolingual import prepare_monolingual
from utils.dataset.stream import SegmentBatch, StreamSampler
from utils.device import autocast
from utils.evaluation.judge import WordPerplexity
from utils.run import TrainedLanguageModel, titles
from utils.search.constraint import next_log_probs
from utils.search.sampling import candidates, inverse_cdf, uniform
from utils.task.task import Say, Trained, score_best
from utils.text.tokenizer import TokenizerPair, load_tokenizers
from utils.training.loss import Loss, RecurrentObjective, mean_loss
from utils.training.report import Validate, perplexity
from utils.visualize.curve import sheet


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

    def _validation(self, split: Split, sampler: StreamSampler) -> tuple[Sequence[SegmentBatch], Validate]:
        batches = sampler.all()
        return batches, WordPerplexity(self.corpus, split, batches)

    def validation(self, net: TransformerXL) -> tuple[Sequence[SegmentBatch], Validate]:  # noqa: ARG002 (the loss suffices)
        """Return the dev text, and what computes its word perplexity from the loss."""
        return self._validation("dev", self._dev)

    def test_and_save(self, trained: Trained, folder: Path, say: Say) -> None:
        """Score the best weights on the test text by word perplexity."""
        test, validate = self._validation("test", self._test)
        text = f"{self.corpus.name} {self.corpus.language}"
        about = {"task": self.config.task, "text": text, **facts(self.fingerprint, self.corpus.rebuilt)}
        score_best(trained, folder, self.config, about, test, validate, say)
        say(f'\nContinue a text with it: python predict.py generate --run {folder} "TEXT"')


# A language model continues a prompt, one token at a time.

_TEXT = 1  # the number of the only text; `sample` has one for each source


@torch.inference_mode()
def generate(
    model: TransformerXL,
    prompt: Sequence[int],
    most: int,
    sentences: int = 1,
    sampling: SamplingConfig | None = None,
    memory_length: int | None = None,
) -> list[list[int]]:
    """Return the tokens of each continuation of a prompt, which is read once for all of them.

    Args:
        model: in eval mode.
        prompt: token ids, preceded by <s> where a document begins.
        most: most tokens of a continuation; one that does not end with </s> reached it.
        sentences: a continuation ends after this many </s>, which belong to it.
        sampling: how many continuations, and how they are drawn; None: one, by greedy search.
        memory_length: positions that are remembered; None: as many as in training.
    """
    if not prompt:
        raise ValueError("the prompt is empty: begin it with <s>")
    if sentences < 1:
        raise ValueError(f"sentences={sentences}: give at least 1")
    device = next(model.parameters()).device
    n = 1 if sampling is None else sampling.n_samples
    draws = None if sampling is None else uniform(sampling, [_TEXT], most)[0].to(device)
    found: list[list[int]] = [[] for _ in range(n)]
    hidden, memory = model(torch.tensor([prompt], device=device), model.start(1, device), memory_length=memory_length)
    logits = model.project(hidden[:, -1]).expand(n, -1)
    alive, memory = list(range(n)), memory.select(torch.zeros(n, dtype=torch.long, device=device))
    for t in range(most):
        log_probs = next_log_probs(logits)
        if sampling is None or draws is None:
            tokens = log_probs.argmax(-1)
        else:
            tokens = _drawn(log_probs, sampling, draws[alive, t])
        for row, token in zip(alive, tokens.tolist(), strict=True):
            found[row].append(token)
        stay = [place for place, row in enumerate(alive) if found[row].count(EOS_ID) < sentences]
        if not stay or t + 1 == most:
            break
        if len(stay) < len(alive):
            alive, rows = [alive[place] for place in stay], torch.tensor(stay, device=device)
            tokens, memory = tokens[rows], memory.select(rows)
        logits, memory = model.step(tokens, memory, memory_length)
    return found


def _drawn(log_probs: Float[Tensor, "R V"], sampling: SamplingConfig, draws: Float[Tensor, " R"]) -> Int[Tensor, " R"]:
    """Return the tokens that the uniform numbers select."""
    likely, tokens = candidates(log_probs, sampling)
    return tokens.gather(-1, inverse_cdf(likely.softmax(-1), draws)[:, None])[:, 0]


def continuations(
    trained: TrainedLanguageModel,
    prompt: str,
    most: int,
    sentences: int,
    sampling: SamplingConfig | None,
    memory_length: int | None = None,
) -> list[str]:
    """Return a prompt followed by what the model generates, each continuation on one line.

    Args:
        trained: in eval mode.
        prompt: the beginning of a document, which may end in the middle of a sentence; may be empty.
        most: most tokens after the prompt.
        sentences: number of sentence ends to stop at, that of the prompt's last sentence included.
        sampling: how to draw tokens, and how many continuations; None: always the likeliest token, once.
        memory_length: positions that are remembered; None: the most that a token had before it in training.
    """
    config, tokenizer, net = trained
    if memory_length is None:
        memory_length = config.model.memory_length + config.batch.segment_length - 1
    ids = [BOS_ID, *tokenizer.encode([prompt])[0]]
    found = generate(net, ids, most, sentences, sampling, memory_length)
    return tokenizer.decode([[*ids, *more] for more in found])


# What a language model's memory is worth: perplexity of a text by the length of the memory.


class Remembered(NamedTuple):
    """How well a text is predicted with a memory of some length."""

    memory_length: int
    perplexity: float  # per token
    word_ppl: float


@torch.inference_mode()
def text_loss(model: TrainedLanguageModel, batches: Sequence[SegmentBatch], memory_length: int) -> float:
    """Return the nats per token of a text that is read segment by segment."""
    device, objective = next(model.net.parameters()).device, RecurrentObjective(memory_length)

    def loss_of(batch: SegmentBatch, memory: Memory | None) -> Loss:
        with autocast(device, model.config.training.precision):
            return objective(model.net, batch.to(device), memory)

    bar = tqdm(batches, desc=f"memory {memory_length}", unit=" segments", disable=None, leave=False)
    return mean_loss(loss_of, bar)


def perplexity_by_memory(
    model: TrainedLanguageModel, split: Split, segment_length: int, memory_lengths: Sequence[int], root: Path = CORPUS
) -> Iterator[Remembered]:
    """Predict a split of the model's corpus, read `segment_length` tokens at a time, with memories of these lengths."""
    corpus = prepare_monolingual(model.config.data, root)
    tokens = corpus.tokens(split, model.tokenizer, print, root)
    batches = StreamSampler(tokens, StreamConfig(1, segment_length)).all()
    by_word = WordPerplexity(corpus, split, batches)
    for memory_length in memory_lengths:
        loss = text_loss(model, batches, memory_length)
        yield Remembered(memory_length, perplexity(loss), by_word(loss).scores["word_ppl"])


def draw_memory(found: Mapping[str, Sequence[Remembered]], picture: Path) -> None:
    """Draw word perplexity against memory length, one line per model, as a PNG."""
    with sheet(picture, (7, 4.5), dpi=120) as (axes,):
        for title, points in zip(titles(list(found)), found.values(), strict=True):
            axes.plot([p.memory_length for p in points], [p.word_ppl for p in points], marker="o", label=title)
        axes.set_xscale("symlog", base=2, linthresh=8)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.set(xlabel="memory length (positions)", ylabel="word perplexity")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
