"""Language modelling with a Transformer-XL; `python -m utils.task.language` continues a text."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int
from jsonargparse import Namespace
from torch import Tensor

from const.token import BOS_ID, EOS_ID
from models.transformer_xl import TransformerXL
from utils.command import Parser, require_options_at_least, run_command
from utils.config import LanguageConfig
from utils.dataset.corpus import Split
from utils.dataset.monolingual import prepare_monolingual
from utils.dataset.stream import SegmentBatch, StreamSampler
from utils.device import pick_device
from utils.evaluation.judge import WordPerplexity
from utils.run import TrainedLanguageModel, find_run, load_language_model
from utils.search.constraint import next_log_probs
from utils.search.sampling import SamplingConfig, candidates, inverse_cdf, uniform
from utils.task.task import Say, Trained, score_best
from utils.terminal.option import SAMPLING, add_sampling_options, changed_by
from utils.text.tokenizer import TokenizerPair, load_tokenizers
from utils.training.loss import RecurrentObjective
from utils.training.report import Validate

# Language modelling: documents as streams, a Transformer-XL, next-token prediction, word perplexity.


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
        about = {"task": self.config.task, "text": text}
        score_best(trained, folder, self.config, about, test, validate, say)
        say(f'\nContinue a text with it: python -m utils.task.language --run {folder} "TEXT"')


# Text generation: a language model continues a prompt, one token at a time.

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
    """Continue a prompt, which is read once for all continuations.

    Args:
        model: in eval mode.
        prompt: token ids, preceded by <s> where a document begins.
        most: most tokens of a continuation.
        sentences: a continuation ends after this many </s>.
        sampling: how many continuations, and how they are drawn; None: one, by greedy search.
        memory_length: positions that are remembered; None: as many as in training.

    Returns:
        The tokens of each continuation, every </s> included; one that does not end with </s> reached `most`.

    Raises:
        ValueError: the prompt is empty, or `sentences` is less than 1.
    """
    if not prompt:
        raise ValueError("the prompt is empty: begin it with <s>")
    if sentences < 1:
        raise ValueError(f"sentences={sentences}: give at least 1")
    device = next(model.parameters()).device
    n = 1 if sampling is None else sampling.n_samples
    draws = None if sampling is None else uniform(sampling, [_TEXT], most)[0].to(device)
    said: list[list[int]] = [[] for _ in range(n)]
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
            said[row].append(token)
        stay = [place for place, row in enumerate(alive) if said[row].count(EOS_ID) < sentences]
        if not stay or t + 1 == most:
            break
        if len(stay) < len(alive):
            alive, rows = [alive[place] for place in stay], torch.tensor(stay, device=device)
            tokens, memory = tokens[rows], memory.select(rows)
        logits, memory = model.step(tokens, memory, memory_length)
    return said


def _drawn(log_probs: Float[Tensor, "R V"], sampling: SamplingConfig, draws: Float[Tensor, " R"]) -> Int[Tensor, " R"]:
    """Return the tokens that the uniform numbers select."""
    likely, tokens = candidates(log_probs, sampling)
    return tokens.gather(-1, inverse_cdf(likely.softmax(-1), draws)[:, None])[:, 0]


# Have a language model continue a text: `python -m utils.task.language "PROMPT" [--run RUN]`.


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
        most: maximum number of tokens after the prompt.
        sentences: number of sentence ends to stop at, that of the prompt's last sentence included.
        sampling: how to draw tokens, and how many continuations; None: always the likeliest token, once.
        memory_length: positions that are remembered; None: the most that a token had before it in training.

    Raises:
        ValueError: when `sentences` is less than 1.
    """
    config, tokenizer, net = trained
    if memory_length is None:
        memory_length = config.model.memory_length + config.batch.segment_length - 1
    ids = [BOS_ID, *tokenizer.encode([prompt])[0]]
    return tokenizer.decode([[*ids, *said] for said in generate(net, ids, most, sentences, sampling, memory_length)])


def build_parser() -> Parser:
    """Build the parser: a prompt, and how to continue it."""
    parser = Parser(
        prog="utils.task.language",
        usage="python -m utils.task.language [PROMPT] [--run RUN] [--tokens N] [--sentences N] [options]",
        description="Continue a text with a language model; without a text, begin a document.",
        epilog="""examples:
  python -m utils.task.language "Kyoto is"
  python -m utils.task.language "The temple was built in" --sentences 3 --samples 5 --top_p 0.9
  python -m utils.task.language "Kyoto is" --greedy --memory_length 256 --run pickles/RUN""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", nargs="?", type=str, default="", metavar="PROMPT", help="how the text begins")
    parser.add_argument("--run", type=Path, help="run of a language model (default: the one trained last)")
    parser.add_argument("--tokens", type=int, default=60, metavar="N", help="maximum number of tokens after the prompt")
    parser.add_argument("--sentences", type=int, default=1, metavar="N", help="stop after this many sentence ends")
    add_sampling_options(parser, "number of continuations, one per line (default: 1)")
    parser.add_argument("--greedy", action="store_true", help="do not sample: always generate the likeliest token")
    parser.add_argument(
        "--memory_length",
        type=int,
        metavar="M",
        help="positions to remember (default: as far back as in training)",
    )
    return parser


def sampling_of(given: Namespace) -> SamplingConfig | None:
    """Return how to sample; None with --greedy.

    Raises:
        ValueError: when a setting is out of range, or is given together with --greedy.
    """
    if not given.greedy:
        if given.temperature is not None and not 0 < given.temperature < math.inf:
            raise ValueError(f"--temperature {given.temperature}: give more than 0, or use --greedy instead")
        return changed_by(SamplingConfig(), SAMPLING, given)
    for option in SAMPLING:
        if given[option] is not None:
            raise ValueError(f"--greedy and --{option} {given[option]} cannot be combined: leave one out")
    return None


def main() -> None:
    """Continue a prompt.

    Raises:
        ValueError: when there is no such run, or a setting is out of range.
    """
    given = build_parser().parse_args()
    require_options_at_least(given, tokens=1, sentences=1, memory_length=0)
    sampling = sampling_of(given)
    trained = load_language_model(find_run(given.run, LanguageConfig), pick_device("auto"))
    for text in continuations(trained, given.prompt, given.tokens, given.sentences, sampling, given.memory_length):
        print(text)


if __name__ == "__main__":
    run_command("generate", main)
