"""Training speed, beside other toolkits with the same work: `python -m bench.train`.

Each setting is measured in a separate process, for its own peak memory, and in several rounds, so that a machine that
slows down in the meantime slows all of them.
"""

import argparse
import itertools
import math
import multiprocessing
import os
import re
import resource
import shutil
import subprocess
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function
from tqdm import tqdm

from bench.measure import add_json_option, product_peak, publish, training_flops
from config.data import DataConfig, TokenizerConfig
from config.model import TransformerConfig
from config.training import OptimizerConfig, Precision, TrainingConfig
from const.token import BOS, EOS, PAD, PAD_ID, UNK
from models.transformer import Transformer
from train import Trainer, compile_blocks
from utils.command import Parser, print_above_bars, run_command
from utils.dataset.batch import Batch, BucketSampler, prefetched
from utils.dataset.corpus import cached_tokenizers, cached_tokens, prepare_corpus
from utils.dataset.ids import TokenPairs
from utils.dataset.text import ParallelText
from utils.device import keep_compiled_kernels, keep_freed_memory, pick_device, synchronize
from utils.file import write_lines
from utils.text.tokenizer import Tokenizer
from utils.training.dry_run import RANGES, peak_memory
from utils.training.loss import TranslationObjective
from utils.training.optimizer import Optimizer

# A well-written plain training loop around `torch.nn.Transformer`, for bench.train.


class PlainTransformer(nn.Module):
    """`torch.nn.Transformer` between one tied embedding, sinusoidal positions and the output.

    Args:
        config: sizes of the model; `config.dropout` also applies to attention weights, as torch has only one dropout.
        vocab: size of the shared vocabulary.
    """

    def __init__(self, config: TransformerConfig, vocab: int) -> None:
        super().__init__()
        c = config
        self.embedding = nn.Embedding(vocab, c.d_model, padding_idx=PAD_ID)
        nn.init.normal_(self.embedding.weight, std=c.d_model**-0.5)
        depth = c.n_encoder_layers, c.n_decoder_layers
        with warnings.catch_warnings(action="ignore"):  # torch warns that norm first rules out nested tensors
            self.transformer = nn.Transformer(
                c.d_model, c.n_heads, *depth, c.d_ff, c.dropout, batch_first=True, norm_first=True
            )
        self.dropout = nn.Dropout(c.dropout)
        angle = torch.arange(c.max_length)[:, None] / 10000 ** (torch.arange(0, c.d_model, 2) / c.d_model)
        self.positions: Tensor
        self.register_buffer("positions", torch.cat([angle.sin(), angle.cos()], dim=1))

    def embed(self, ids: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        """Embed tokens and their positions."""
        scale = math.sqrt(self.embedding.embedding_dim)
        return self.dropout(self.embedding(ids) * scale + self.positions[: ids.size(1)])

    def forward(self, src: Int[Tensor, "B S"], tgt: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Return the logits after each target position; padding is at the end, where the causal mask hides it."""
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), device=tgt.device)
        padding = src == PAD_ID
        hidden = self.transformer(
            self.embed(src),
            self.embed(tgt),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return F.linear(hidden, self.embedding.weight)


class PlainLoop:
    """Training with cross-entropy, label smoothing, gradient clipping and Adam.

    Args:
        model: model to train.
        smoothing: ε of label smoothing.
        bf16: whether to autocast to bfloat16.
    """

    def __init__(self, model: PlainTransformer, smoothing: float, bf16: bool) -> None:
        self.model = model.train()
        self.smoothing = smoothing
        self.bf16 = bf16
        self.adam = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))

    def train_step(self, batch: Batch) -> None:
        """Do one update."""
        with record_function("forward"), torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            logits = self.model(batch.src, batch.tgt[:, :-1])
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                batch.tgt[:, 1:].flatten(),
                ignore_index=PAD_ID,
                label_smoothing=self.smoothing,
            )
        with record_function("backward"):
            self.adam.zero_grad()
            loss.backward()
        with record_function("optimizer"):
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.adam.step()


# Training with other toolkits, each in its own environment, with their speed taken from their logs.
#
# What their logs count, according to their sources: JoeyNMT's "Tokens per Sec" (`Batch.ntokens`) and the second
# figure of Eole's "tok/s" (`Statistics.n_tokens`) are both target tokens with </s>, without <s> and padding, over all
# the time since the previous line, reading data included. No correction is needed.

PEER_WARM_UP = 3  # fewest log lines that do not count
SETTINGS = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class Peer:
    """A toolkit.

    Args:
        name: name of its package.
        title: name of the toolkit.
        arguments: arguments of python that start a training with the settings beside the texts.
        rate: regular expression for target tokens per second in a log line.
    """

    name: str
    title: str
    arguments: tuple[str, ...]
    rate: str


JOEYNMT = Peer("joeynmt", "JoeyNMT", ("-m", "joeynmt", "train", "joeynmt.yaml"), r"Tokens per Sec: +(\d+)")
EOLE = Peer("eole", "Eole", ("-m", "eole.bin.main", "train", "-c", "eole.yaml"), r"\d+/ *(\d+) tok/s")
PEERS = (JOEYNMT, EOLE)


def python_of(peer: Peer, environment: Path) -> Path:
    """Return the interpreter of a virtual environment with the peer.

    Raises:
        ValueError: there is no environment, or the peer is not in it.
    """
    python = environment / "bin" / "python"
    if not python.exists():
        raise ValueError(
            f"--{peer.name} {environment}: not a virtual environment; bench/README.md explains how to make one"
        )
    find = f"import importlib.util as u, sys; sys.exit(u.find_spec({peer.name!r}) is None)"
    if subprocess.run([python, "-c", find], check=False).returncode:
        raise ValueError(f"--{peer.name} {environment}: {peer.title} is not installed in it; see bench/README.md")
    return python.absolute()


def write_texts(train: ParallelText, dev: ParallelText, pieces: Iterable[str], folder: Path, budget: int) -> None:
    """Write all that the peers read: texts split into pieces, the pieces, and settings with this token budget."""
    for name, text in (("train", train), ("dev", dev)):
        for side, lines in (("src", text.src), ("tgt", text.tgt)):
            write_lines(folder / f"{name}.{side}", lines)
    write_lines(folder / "pieces.txt", pieces)
    for peer in PEERS:
        settings = yaml.safe_load((SETTINGS / f"{peer.name}.yaml").read_text(encoding="utf-8"))
        settings["training"]["batch_size"] = budget
        (folder / f"{peer.name}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def mean_rate(rates: Iterator[float], warm_up: float, seconds: float) -> float:
    """Return the mean of rates, each weighted by the time since the previous one, over `seconds` seconds.

    Args:
        rates: rates as they arrive.
        warm_up: seconds after the first rate that do not count.
        seconds: seconds that count.

    Raises:
        ValueError: the rates end too early.
    """
    work = covered = 0.0
    last = warm = time.perf_counter()
    for n, rate in enumerate(rates):
        now = time.perf_counter()
        if n == 0:
            warm = now + warm_up
        elif n >= PEER_WARM_UP and last >= warm:
            work, covered = work + rate * (now - last), covered + now - last
        last = now
        if covered >= seconds:
            return work / covered
    raise ValueError(f"ended after {covered:.0f} of {seconds:.0f} seconds")


def train_peer(
    peer: Peer, python: Path, folder: Path, threads: int, warm_up: float, seconds: float
) -> tuple[float, float]:
    """Return target tokens per second, and peak memory in MiB. This process must have had no other child before.

    Args:
        peer: toolkit to train with.
        python: interpreter of its environment.
        folder: folder written by `write_texts`.
        threads: number of CPU threads.
        warm_up: seconds after its first log line that do not count.
        seconds: seconds that count.

    Raises:
        ValueError: it ended too early; the message includes its last lines.
    """
    shutil.rmtree(folder / peer.name, ignore_errors=True)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    environment.pop("PYTHONPATH", None)
    said: deque[str] = deque(maxlen=5)
    process = subprocess.Popen(
        [python, "-u", *peer.arguments],
        cwd=folder,
        env=environment,
        text=True,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        rate = mean_rate(_rates(process.stdout or (), peer.rate, said), warm_up, seconds)
    except ValueError as error:
        raise ValueError(f"{peer.title} {error}; its last lines: {' | '.join(said)}") from error
    finally:
        process.kill()
        process.wait()
    return rate, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def _rates(lines: Iterable[str], pattern: str, said: deque[str]) -> Iterator[float]:
    for line in lines:
        said.append(line.strip())
        if found := re.search(pattern, line):
            yield float(found[1])


OURS, PLAIN = "miyako", "torch.nn.Transformer"
PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}
MODEL = TransformerConfig(
    d_model=256, n_heads=8, d_ff=1024, n_encoder_layers=3, n_decoder_layers=3, dropout=0.1, attention_dropout=0.1
)
BASE = TransformerConfig(dropout=0.1)  # for a GPU
BUDGET = 4096  # tokens per batch on the CPU, padding included
GPU_BUDGETS = (8192, 16384, 32768, 65536)
LONGEST = 100  # tokens per sentence, </s> included
SMOOTHING = 0.1
WARM_UP, LONG_WARM_UP = 3, 30  # fewest steps that do not count; more if each shape needs compilation or allocation
PROFILED = 5  # steps whose parts are profiled

Step = Callable[[Batch], object]


@dataclass(frozen=True)
class Setting:
    """A setting to measure.

    Args:
        system: system that trains.
        precision: precision of matrix products.
        compiled: whether torch.compile is used.
        tokens_per_batch: token budget of a batch.
    """

    system: str
    precision: str
    compiled: bool = False
    tokens_per_batch: int = BUDGET

    def __str__(self) -> str:
        return f"{self.system} {self.precision}{', compiled' if self.compiled else ''}"


@dataclass(frozen=True)
class Job:
    """What all settings have in common.

    Args:
        model: architecture of the model.
        pairs: training set.
        vocab: size of the vocabulary.
        device: cpu or cuda.
        threads: number of CPU threads.
        warm_up: seconds of training that do not count.
        seconds: seconds of training that count.
        texts: folder with the texts that the peers read.
        peers: interpreter of each peer.
    """

    model: TransformerConfig
    pairs: TokenPairs
    vocab: int
    device: torch.device
    threads: int
    warm_up: float
    seconds: float
    texts: Path
    peers: dict[str, Path]


@dataclass(frozen=True)
class Measurement:
    """The measurement of one setting.

    Args:
        setting: the measured setting.
        tokens_per_s: target tokens per second, with </s>, without <s> and padding, over whole steps.
        peak_mib: peak memory of the process, or of the GPU.
        padding: share of padding in the batches, if they are ours.
        part_ms: milliseconds of each part of a step, if it can be profiled.
        rounds: `tokens_per_s` of every round, of which the best is given above.
    """

    setting: Setting
    tokens_per_s: float
    peak_mib: float
    padding: float | None
    part_ms: dict[str, float]
    rounds: tuple[float, ...]


def our_step(setting: Setting, job: Job) -> Step:
    """Return the update step of our Trainer."""
    keep_freed_memory()
    keep_compiled_kernels()
    model = Transformer(job.model, job.vocab, job.vocab).to(job.device)
    precision: Precision = "bf16" if setting.precision == "bf16" else "fp32"
    if setting.compiled:
        compile_blocks(model)
    optimizer = Optimizer(model, OptimizerConfig(), precision)
    trainer = Trainer(model, TranslationObjective(SMOOTHING), optimizer, TrainingConfig(precision=precision))
    return lambda batch: trainer.train_step([batch])


def plain_step(setting: Setting, job: Job) -> Step:
    """Return the update step of the plain loop."""
    model = PlainTransformer(job.model, job.vocab)
    return PlainLoop(model, SMOOTHING, setting.precision == "bf16").train_step


def batches(sampler: BucketSampler, pin: bool) -> Iterator[Batch]:
    """Yield batches of endless epochs, prefetched as in training."""
    return prefetched((batch for n in itertools.count() for batch in sampler.epoch(n)), pin)


def timed(step: Step, source: Iterator[Batch], job: Job, fewest: int) -> float:
    """Return target tokens per second, batching included, after a warm-up of at least `fewest` steps."""
    trained_for(job.warm_up, fewest, step, source)
    synchronize(job.device)
    begin = time.perf_counter()
    tokens = trained_for(job.seconds, 1, step, source)
    synchronize(job.device)
    return tokens / (time.perf_counter() - begin)


def trained_for(seconds: float, fewest: int, step: Step, source: Iterator[Batch]) -> int:
    """Train for `seconds` and at least `fewest` steps; return the number of target tokens."""
    tokens, begin = 0, time.perf_counter()
    for n in itertools.count():
        if n >= fewest and time.perf_counter() - begin >= seconds:
            break
        batch = next(source)
        step(batch)
        tokens += batch.target_tokens
    return tokens


def parts(step: Step, source: Iterator[Batch]) -> dict[str, float]:
    """Return the milliseconds of each part of a step on the CPU."""
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        for _ in range(PROFILED):
            with record_function("data"):
                batch = next(source)
            step(batch)
    total = {event.key: event.cpu_time_total for event in trace.key_averages()}
    return {part: total[part] / 1000 / PROFILED for part in RANGES if part in total}


def measure(setting: Setting, job: Job) -> Measurement:
    """Measure a setting by training for a while."""
    for peer in PEERS:
        if setting.system == peer.title:
            rate, peak = train_peer(peer, job.peers[peer.title], job.texts, job.threads, job.warm_up, job.seconds)
            return Measurement(setting, rate, peak, None, {}, (rate,))
    torch.set_num_threads(job.threads)
    torch.manual_seed(1)
    step = (our_step if setting.system == OURS else plain_step)(setting, job)
    on_cuda = job.device.type == "cuda"
    multiple = 8 if on_cuda else 1  # few shapes on CUDA, little padding on the CPU
    sampler = BucketSampler(job.pairs, setting.tokens_per_batch, LONGEST, 1, multiple)
    padding = sampler.epoch(0).padding
    source = batches(sampler, pin=on_cuda)
    rate = timed(step, source, job, LONG_WARM_UP if setting.compiled or on_cuda else WARM_UP)
    peak = peak_memory(job.device) / 2**20
    part_ms = {} if on_cuda else parts(step, source)
    return Measurement(setting, rate, peak, padding, part_ms, (rate,))


def measure_plainly(setting: Setting, job: Job) -> Measurement:
    """Run `measure`, turning torch errors into a one-line RuntimeError: a compiler's own errors cannot be pickled.

    Raises:
        RuntimeError: e.g. memory or a compiler is missing.
    """
    try:
        return measure(setting, job)
    except RuntimeError as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise RuntimeError(f"{type(error).__name__}: {reason}") from error


def in_own_process(setting: Setting, job: Job) -> Measurement:
    """Run `measure_plainly` in a fresh process."""
    spawn = multiprocessing.get_context("spawn")  # a forked child would inherit its parent's peak
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(measure_plainly, setting, job).result()


def better(a: Measurement, b: Measurement) -> Measurement:
    """Return the faster measurement, with the rounds of both."""
    return replace(max(a, b, key=lambda found: found.tokens_per_s), rounds=a.rounds + b.rounds)


def measure_all(settings: Sequence[Setting], job: Job, rounds: int) -> list[Measurement]:
    """Return the best of all rounds for each setting.

    A setting that may lack memory or a compiler is left out if it fails, with a line that gives the reason.
    """
    best: dict[Setting, Measurement] = {}
    going = list(settings)
    with tqdm(total=rounds * len(settings), unit="measurement", disable=None) as bar:
        print_above_bars("target tokens per second, as measured:")
        for _ in range(rounds):
            for setting in tuple(going):
                bar.set_postfix_str(str(setting))
                try:
                    found = in_own_process(setting, job)
                    best[setting] = better(best[setting], found) if setting in best else found
                    print_above_bars(
                        f"{setting}, {setting.tokens_per_batch:,} tokens per batch: {found.tokens_per_s:,.0f}"
                    )
                except RuntimeError as error:
                    if not setting.compiled and job.device.type == "cpu":
                        raise
                    going.remove(setting)
                    print_above_bars(f"{setting}, {setting.tokens_per_batch:,} tokens per batch: left out, {error}")
                bar.update()
    return [best[setting] for setting in settings if setting in best]


def cpu_settings(peers: Iterable[str], compiled: bool) -> list[Setting]:
    """Return our settings, the plain loop, and the given peers."""
    ours = [Setting(OURS, precision, c) for c in ((False, True) if compiled else (False,)) for precision in PRECISIONS]
    return [*ours, *(Setting(PLAIN, precision) for precision in PRECISIONS), *(Setting(peer, "fp32") for peer in peers)]


def gpu_settings() -> list[Setting]:
    """Return our settings with several batch sizes, eager and compiled."""
    return [Setting(OURS, "bf16", compiled, budget) for budget in GPU_BUDGETS for compiled in (False, True)]


def utilisation(found: Measurement, flops_per_token: float, peaks: Mapping[str, float]) -> float:
    """Return the share of the peak matrix-product speed that went into operations that the model needs."""
    return found.tokens_per_s * flops_per_token / (peaks[found.setting.precision] * 1e9)


def table(measurements: Sequence[Measurement], flops_per_token: float, peaks: Mapping[str, float]) -> str:
    """Return a table with a line for each setting; the last column is how much faster our best setting is."""
    ours = max(found.tokens_per_s for found in measurements if found.setting.system == OURS)
    lines = [
        f"{'system':20} {'precision':14} {'batch':>6} {'target tok/s':>12} {'of peak':>8} {'padding':>8} "
        + " ".join(f"{f'{part} ms':>12}" for part in RANGES)
        + f" {'MiB':>7} {'ours is':>8}"
    ]
    for found in measurements:
        s = found.setting
        precision = f"{s.precision}{' compiled' if s.compiled else ''}"
        padding = "" if found.padding is None else f"{found.padding:.1%}"
        part_ms = (f"{found.part_ms[part]:.1f}" if part in found.part_ms else "" for part in RANGES)
        lines.append(
            f"{s.system:20} {precision:14} {s.tokens_per_batch:>6} {found.tokens_per_s:>12,.0f} "
            f"{utilisation(found, flops_per_token, peaks):>8.1%} {padding:>8} "
            + " ".join(f"{ms:>12}" for ms in part_ms)
            + f" {found.peak_mib:>7,.0f} {ours / found.tokens_per_s:>6.2f} x"
        )
    return "\n".join(lines)


def short_name(setting: Setting) -> str:
    """Return a name for a line of name=value pairs."""
    words = [setting.system.lower().replace(".", "_"), setting.precision]
    if setting.compiled:
        words.append("compiled")
    if setting.tokens_per_batch != BUDGET:
        words.append(str(setting.tokens_per_batch))
    return "_".join(words)


def summary(
    measurements: Sequence[Measurement], flops_per_token: float, peaks: Mapping[str, float]
) -> dict[str, float]:
    """Return speeds, shares of the peak, and the ratio of each of our settings to each other system."""
    figures: dict[str, float] = {}
    for found in measurements:
        name = short_name(found.setting)
        figures[f"{name}_tokens_per_s"] = found.tokens_per_s
        figures[f"{name}_of_peak"] = utilisation(found, flops_per_token, peaks)
        if found.setting.system == OURS:
            for other in measurements:
                if other.setting.system != OURS:
                    figures[f"{name}_over_{short_name(other.setting)}"] = found.tokens_per_s / other.tokens_per_s
    return figures


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = Parser(
        prog="bench.train",
        usage="python -m bench.train [--archive FILE] [--joeynmt VENV] [--eole VENV] [--seconds N] [--json FILE]",
        description="Compare training speed: this project, a plain loop over torch.nn.Transformer, other toolkits.",
        epilog="""examples:
  python -m bench.train                                      this project and torch.nn.Transformer, on Tanaka
  python -m bench.train --archive small_parallel_enja.tar.xz --joeynmt VENV --eole VENV --json train.json
  python -m bench.train --compile                            with torch.compile too (needs a C++ compiler)
  python -m bench.train --warm_up 1 --seconds 5 --rounds 1   a quick look
  python -m bench.train --device cuda --corpus kftt          this project alone, Transformer base, larger batches""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--corpus",
        choices=("tanaka", "kftt", "embedded"),
        default="tanaka",
        help="corpus to train on (default: tanaka)",
    )
    parser.add_argument("--archive", type=Path, help="local archive or unpacked folder of the corpus")
    for peer in PEERS:
        parser.add_argument(f"--{peer.name}", type=Path, metavar="VENV", help=f"virtual environment with {peer.title}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device (default: cpu)")
    parser.add_argument("--compile", action="store_true", help="also measure with torch.compile (always on CUDA)")
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="CPU threads (default: one per core)"
    )
    parser.add_argument(
        "--warm_up", type=float, default=60, metavar="SECONDS", help="warm-up of each setting (default: 60)"
    )
    parser.add_argument(
        "--seconds", type=float, default=60, help="measured training time of each setting (default: 60)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, of which the best counts (default: 3)")
    add_json_option(parser)
    return parser


def within(pairs: TokenPairs, tokenizer: Tokenizer) -> ParallelText:
    """Return the pairs of a split that our sampler uses, split into pieces."""
    src, tgt = (side.lengths for side in pairs)
    kept = np.flatnonzero((src > 0) & (tgt > 0) & (np.maximum(src, tgt) < LONGEST)).tolist()
    lines = ([" ".join(tokenizer.tokens(side[i].tolist())) for i in kept] for side in pairs)
    return ParallelText(*lines)


def prepare(arguments: argparse.Namespace, folder: Path) -> tuple[Job, float]:
    """Return all that the settings need, and the operations per target token.

    Raises:
        ValueError: an option is invalid, or something requested is missing.
    """
    given = {peer: getattr(arguments, peer.name) for peer in PEERS if getattr(arguments, peer.name)}
    device = pick_device(arguments.device)
    if given and device.type == "cuda":
        raise ValueError("--device cuda measures this project alone: leave out --joeynmt and --eole")
    for name in ("threads", "warm_up", "seconds", "rounds"):
        if not getattr(arguments, name) > 0:  # nor NaN
            raise ValueError(f"--{name} {getattr(arguments, name)}: give more than 0")
    peers = {peer.title: python_of(peer, environment) for peer, environment in given.items()}

    data = DataConfig(corpus=arguments.corpus, archive=arguments.archive)
    corpus = prepare_corpus(data)
    tokenizers = cached_tokenizers(corpus, data, TokenizerConfig(vocab_size=6000), print)
    train, dev = (cached_tokens(corpus, split, data, tokenizers, print) for split in ("train", "dev"))
    vocab = len(tokenizers.tgt)
    if peers:
        pieces = [piece for piece in tokenizers.tgt.tokens(range(vocab)) if piece not in (PAD, UNK, BOS, EOS)]
        write_texts(within(train, tokenizers.src), within(dev, tokenizers.src), pieces, folder, BUDGET)

    model = MODEL if device.type == "cpu" else BASE
    src, tgt = (side.lengths.astype(np.int64) + 1 for side in train)
    flops_per_token = float(training_flops(model, vocab, src, tgt).sum() / tgt.sum())
    return Job(
        model, train, vocab, device, arguments.threads, arguments.warm_up, arguments.seconds, folder, peers
    ), flops_per_token


def main() -> None:
    """Measure, print the table and write the results."""
    arguments = build_parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job, flops_per_token = prepare(arguments, Path(folder))
        torch.set_num_threads(job.threads)
        peaks = {name: product_peak(dtype, job.device) for name, dtype in PRECISIONS.items()}
        on_cpu = job.device.type == "cpu"
        settings = cpu_settings(job.peers, arguments.compile) if on_cpu else gpu_settings()
        measurements = measure_all(settings, job, arguments.rounds)
    if not measurements:
        raise ValueError("nothing could be measured: see the lines above")
    machine = f"{job.threads} threads" if on_cpu else torch.cuda.get_device_name(job.device)
    print(
        f"{arguments.corpus}, {machine}; matrix products peak at "
        f"{', '.join(f'{peak:,.0f} GFLOP/s in {name}' for name, peak in peaks.items())}; "
        f"a target token takes {flops_per_token / 1e6:.1f} MFLOP\n"
    )
    print(table(measurements, flops_per_token, peaks))
    figures = summary(measurements, flops_per_token, peaks)
    about = {
        "name": arguments.corpus,
        "machine": machine,
        "warm_up": arguments.warm_up,
        "seconds": arguments.seconds,
        "model": asdict(job.model),
        "vocab": job.vocab,
        "mflop_per_target_token": flops_per_token / 1e6,
        "product_gflops": peaks,
        "measurements": [asdict(found) for found in measurements],
    }
    publish(figures, about, arguments.json)


if __name__ == "__main__":
    run_command("bench.train", main)
