"""Language modelling: a Transformer-XL, word perplexity; what it generates, and what its memory is worth."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from config.data import StreamConfig
from config.search import SamplingConfig
from const.path import CORPUS
from const.token import BOS_ID, EOS_ID, PAD_ID
from models.transformer_xl import TransformerXL
from utils.command import Log
from utils.config import LanguageConfig
from utils.dataset.corpus import Split
from utils.dataset.monolingual import StreamSampler, prepare_monolingual
from utils.device import autocast, resolve_precision
from utils.evaluation.validation import word_perplexity
from utils.load import TrainedLanguageModel
from utils.run import titles
from utils.search.constraint import next_log_probs
from utils.search.sampling import candidates, inverse_cdf, uniform_draws
from utils.task.task import HeldOut, MonolingualTask
from utils.training.loss import recurrent_loss
from utils.training.report import Validate, perplexity
from utils.visualize.curve import sheet


class LanguageTask(MonolingualTask):
    """A text to train and score on."""

    objective = staticmethod(recurrent_loss)
    unit = "tok"
    next_step = 'Continue a text with it: python predict.py generate --run {} "TEXT"'

    def __init__(self, config: LanguageConfig, source: Path | None, log: Log) -> None:
        config.training.require_score()
        super().__init__(config, source, log)

        def sampler(split: Split) -> StreamSampler:
            return StreamSampler(self.corpus.tokens(split, self.tokenizer, log), config.batch, config.training.seed)

        # Held-out text is one stream: no document is cut, and the loss does not depend on the settings of batches.
        # Several would take a third less time for a validation, which is about a hundredth of a training.
        self.learn_from(sampler("train"), sampler("dev"), sampler("test"))

    def build(self) -> TransformerXL:
        """Build a Transformer-XL."""
        return TransformerXL(self.config.model, len(self.tokenizer))

    def scorer(self, net: TransformerXL, split: HeldOut) -> Validate:  # noqa: ARG002 (the loss suffices)
        """Return what computes the word perplexity from the loss."""
        return word_perplexity(self.corpus, split, self.held_out[split])


# A language model continues a prompt, one token at a time.

_TEXT = 1  # the number of the only text; `sample` has one for each source


@torch.inference_mode()
def generate(
    model: TransformerXL,
    prompt: Sequence[int],
    max_tokens: int,
    sentences: int = 1,
    sampling: SamplingConfig | None = None,
    memory_length: int | None = None,
) -> list[list[int]]:
    """Return the tokens of each continuation of a prompt (<s> first, where a document begins), read once for all.

    A continuation ends after so many `sentences`, with their </s>, or after `max_tokens`. Without `sampling` there is
    one, by greedy search; without `memory_length` as many positions are remembered as in training.
    """
    device = next(model.parameters()).device
    n = 1 if sampling is None else sampling.n_samples
    draws = None if sampling is None else uniform_draws(sampling, [_TEXT], max_tokens)[0].to(device)
    generated: list[list[int]] = [[] for _ in range(n)]
    hidden, memory = model(torch.tensor([prompt], device=device), model.start(1, device), memory_length=memory_length)
    logits = model.output(hidden[:, -1]).expand(n, -1)
    alive, memory = list(range(n)), memory.select(torch.zeros(n, dtype=torch.long, device=device))
    for t in range(max_tokens):
        log_probs = next_log_probs(logits)
        if sampling is None or draws is None:
            tokens = log_probs.argmax(-1)
        else:  # the tokens that the uniform numbers select
            likely, numbers = candidates(log_probs, sampling)
            tokens = numbers.gather(-1, inverse_cdf(likely.softmax(-1), draws[alive, t])[:, None])[:, 0]
        for row, token in zip(alive, tokens.tolist(), strict=True):
            generated[row].append(token)
        stay = [place for place, row in enumerate(alive) if generated[row].count(EOS_ID) < sentences]
        if not stay or t + 1 == max_tokens:
            break
        if len(stay) < len(alive):
            alive, rows = [alive[place] for place in stay], torch.tensor(stay, device=device)
            tokens, memory = tokens[rows], memory.select(rows)
        logits, memory = model.step(tokens, memory, memory_length)
    return generated


def continuations(
    trained: TrainedLanguageModel,
    prompt: str,
    max_tokens: int,
    sentences: int,
    sampling: SamplingConfig | None,
    memory_length: int | None = None,
) -> list[str]:
    """Return a prompt followed by what the model generates, each continuation on one line; as in `generate`.

    The prompt is the beginning of a document, and may be empty or end in the middle of a sentence, whose end counts.
    Without `memory_length`, as many positions are remembered as a token had before it in training, at most.
    """
    config, tokenizer, net = trained
    if memory_length is None:
        memory_length = config.model.memory_length + config.batch.segment_length - 1
    ids = [BOS_ID, *tokenizer.encode([prompt])[0]]
    generated = generate(net, ids, max_tokens, sentences, sampling, memory_length)
    return tokenizer.decode([[*ids, *continuation] for continuation in generated])


# What a language model's memory is worth: perplexity of a text by the length of the memory.


class Remembered(NamedTuple):
    """How well a text is predicted with a memory of some length."""

    memory_length: int
    perplexity: float  # per token
    word_ppl: float


def perplexity_by_memory(
    model: TrainedLanguageModel, split: Split, segment_length: int, memory_lengths: Sequence[int], root: Path = CORPUS
) -> Iterator[tuple[Remembered, Float[Tensor, " N"]]]:
    """Predict a split of the model's corpus, read `segment_length` tokens at a time, with memories of these lengths.

    Beside each result is the loss of every token of the split, in nats.
    """
    corpus, device = prepare_monolingual(model.config.data, root), next(model.net.parameters()).device
    tokens = corpus.tokens(split, model.vocabulary, print)
    batches = StreamSampler(tokens, StreamConfig(1, segment_length)).all()
    by_word = word_perplexity(corpus, split, batches)
    precision = resolve_precision("auto", device, model.config.model.d_model)

    for memory_length in memory_lengths:
        bar = tqdm(batches, desc=f"memory {memory_length}", unit=" segments", disable=None, leave=False)
        memory, losses = model.net.start(1, device), list[Tensor]()
        with torch.inference_mode(), autocast(device, precision):
            for batch in (batch.to(device) for batch in bar):
                hidden, memory = model.net(batch.ids, memory, batch.document, memory_length)
                real = batch.target != PAD_ID
                logits = model.net.output(hidden[real]).float()
                losses.append(F.cross_entropy(logits, batch.target[real], reduction="none"))
        nats = torch.cat(losses).cpu()
        loss = nats.mean().item()
        yield Remembered(memory_length, perplexity(loss), by_word(loss).scores["word_ppl"]), nats


ENOUGH_GAIN = 0.01  # a lower perplexity by a hundredth: as in the paper


def effective_memory(losses: Mapping[int, Float[Tensor, " N"]], hardest: float) -> int:
    """Return up to which length more memory helps: the first beyond which perplexity falls by less than a hundredth.

    After the relative effective context length of Dai et al. 2019, appendix C, but without its minimum: there a token
    counts only where its loss falls, so that chance alone makes a gain of each step, of several hundredths here.

    Args:
        losses: of the same tokens, in nats, by the length of the memory.
        hardest: share of the tokens that are counted, those with the largest loss at the shortest length; the others
            can be predicted with little memory.
    """
    lengths = sorted(losses)
    shortest = losses[lengths[0]]
    places = shortest.topk(math.ceil(hardest * len(shortest))).indices
    for short, long in pairwise(lengths):
        if 1 - math.exp((losses[long] - losses[short])[places].mean()) < ENOUGH_GAIN:
            return short
    return lengths[-1]


def draw_memory(results: Mapping[str, Sequence[Remembered]], picture: Path) -> None:
    """Draw word perplexity against memory length, one line per model, as a PNG."""
    with sheet(picture, (7, 4.5), dpi=120) as (axes,):
        for title, points in zip(titles(list(results)), results.values(), strict=True):
            axes.plot([p.memory_length for p in points], [p.word_ppl for p in points], marker="o", label=title)
        axes.set_xscale("symlog", base=2, linthresh=8)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.set(xlabel="memory length (positions)", ylabel="word perplexity")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
