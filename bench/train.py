"""Training speed, beside other toolkits with the same work: `python -m bench.train`."""

import itertools
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from bench.measure import benchmark_parser, in_own_process, in_rounds, precisions, product_peak, publish, training_flops
from bench.results import train_table
from config.data import BatchConfig, DataConfig, TokenizerConfig
from config.model import TransformerConfig
from config.training import Precision, TranslationTrainingConfig
from const.token import BOS, EOS, PAD, PAD_ID, UNK
from layers.dropout import Dropout
from train import Trainer
from utils import device as device_module
from utils import memory
from utils.command import Namespace, Parser, print_above_bars, require_options_at_least, run_command
from utils.config import TranslationConfig, find_settings
from utils.dataset.batch import Batch, BucketSampler, prefetched
from utils.dataset.corpus import prepare_corpus
from utils.dataset.ids import TokenPairs, cached_tokenizers, cached_tokens
from utils.device import compile_blocks, pick_device, synchronize
from utils.file import write_lines
from utils.load import build_network
from utils.provenance import machine
from utils.text.tokenizer import Tokenizer
from utils.training import loss
from utils.training.dry_run import RANGES, peak_memory
from utils.training.graph import GraphedPasses
from utils.training.loss import TranslationObjective
from utils.training.optimizer import Optimizer

OURS, PLAIN = "miyako", "torch.nn.Transformer"
PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}
COMPARED = TranslationConfig(  # with the other toolkits, whose settings in peers/ are the same
    name="tanaka",
    data=DataConfig(corpus="tanaka"),
    tokenizer=TokenizerConfig(vocab_size=6000),
    model=TransformerConfig(
        d_model=256, n_heads=8, d_ff=1024, n_encoder_layers=3, n_decoder_layers=3, dropout=0.1, attention_dropout=0.1
    ),
    batch=BatchConfig(tokens_per_batch=4096, max_tokens=100),
    training=TranslationTrainingConfig(label_smoothing=0.1),
)
ON_A_GPU = "kftt_ja_en"  # the preset measured there
WARM_UP, LONG_WARM_UP = 3, 30  # steps at least that do not count; more if each shape needs compilation
ON_CUDA = 40  # batches, at random, which come again and again: each is recorded or compiled for before the time counts
PEER_WARM_UP = 3  # log lines at least that do not count
PROFILED = 5  # steps whose parts are profiled

Step = Callable[[Batch], object]


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    system: str
    precision: str
    compiled: bool = False  # by torch.compile
    tokens_per_batch: int = COMPARED.batch.tokens_per_batch
    without: str = ""  # of ours: the name of what is computed plainly instead

    def __str__(self) -> str:
        compiled, without = ", compiled" * self.compiled, f" without {self.without}" if self.without else ""
        return f"{self.system} {self.precision}{compiled}{without}, {self.tokens_per_batch:,} tokens per batch"


@dataclass(frozen=True)
class Job:
    """What all settings have in common."""

    config: TranslationConfig
    pairs: TokenPairs
    vocabs: tuple[int, int]  # sizes of the vocabularies of source and target
    device: torch.device
    threads: int
    warm_up: float  # seconds of training that do not count
    seconds: float  # seconds of training that count
    texts: Path  # folder with the texts that the peers read
    peers: dict[str, Path]  # title of each peer -> its interpreter


@dataclass(frozen=True)
class Measurement:
    """The measurement of one setting."""

    setting: Setting
    tokens_per_s: float  # target tokens with </s>, without <s> and padding, over whole steps
    peak_mib: float  # of the process, or of the GPU
    padding: float | None  # share of padding in the batches, if they are ours
    part_ms: dict[str, float]  # milliseconds of each part of a step, if it can be profiled


# A well-written plain training loop around `torch.nn.Transformer`.


class PlainTransformer(nn.Module):
    """`torch.nn.Transformer` between one tied embedding, sinusoidal positions and the output.

    Torch has only one dropout: `config.dropout` applies to attention weights, too.
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
        return self.dropout(self.embedding(ids) * self.embedding.embedding_dim**0.5 + self.positions[: ids.size(1)])

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


def plain_step(model: PlainTransformer, precision: str, smoothing: float) -> Step:
    """Return an update by cross-entropy with label smoothing, gradient clipping and Adam."""
    model.train()
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))

    def step(batch: Batch) -> None:
        with record_function("forward"), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits, right = model(batch.src, batch.tgt[:, :-1]).flatten(0, 1), batch.tgt[:, 1:].flatten()
            loss = F.cross_entropy(logits, right, ignore_index=PAD_ID, label_smoothing=smoothing)
        with record_function("backward"):
            adam.zero_grad()
            loss.backward()
        with record_function("optimizer"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()

    return step


def plain_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, smoothing: float = 0.0, *_: object
) -> tuple[Tensor, Tensor]:
    """Return the loss as `projected_cross_entropy` does, from the logits of the whole batch; and again, as its NLL."""
    logits = F.linear(hidden[0], weight, bias)
    nats = F.cross_entropy(logits, target, label_smoothing=smoothing, reduction="sum")
    return nats, nats.detach()  # the real NLL would cost time here, and only a report would show it


# What makes our training faster than torch's own operations would, by name: a place, and what was there without it.
TWINS: dict[str, tuple[object, str, object]] = {
    "byte_dropout": (Dropout, "forward", lambda self, x: F.dropout(x, self.p, self.training)),
    "projected_loss": (loss, "projected_cross_entropy", plain_loss),
    "kept_memory": (memory, "keep_freed_memory", lambda: None),
    "kept_kernels": (device_module, "keep_compiled_kernels", lambda: None),
    "graphs": (GraphedPasses, "__call__", lambda self, batch, memory=None: self.passes(batch, memory)),  # of CUDA
}


def our_step(config: TranslationConfig, model: nn.Module, setting: Setting) -> Step:
    """Return the update of our Trainer, without one of its twins if the setting says so."""
    if setting.without:
        setattr(*TWINS[setting.without])
    memory.keep_freed_memory()
    device_module.keep_compiled_kernels()
    precision: Precision = "bf16" if setting.precision == "bf16" else "fp32"
    if setting.compiled:
        compile_blocks(model)
    training = replace(config.training, precision=precision, compile=setting.compiled)
    optimizer = Optimizer(model, config.optimizer.ending_at(training.max_steps, training.max_minutes), precision)
    trainer = Trainer(model, TranslationObjective(training.label_smoothing, training.r_drop), optimizer, training)
    return lambda batch: trainer.train_step([batch])


# Training with other toolkits, each in its own environment, with their speed taken from their logs.
#
# What their logs count, according to their sources: JoeyNMT's "Tokens per Sec" (`Batch.ntokens`) and the second
# figure of Eole's "tok/s" (`Statistics.n_tokens`) are both target tokens with </s>, without <s> and padding, over all
# the time since the previous line, reading data included. No correction is needed.


class Peer(NamedTuple):
    """A toolkit."""

    package: str
    title: str
    arguments: tuple[str, ...]  # of python: they start a training with the settings beside the texts
    rate: str  # regular expression for target tokens per second in a log line


JOEYNMT = Peer("joeynmt", "JoeyNMT", ("-m", "joeynmt", "train", "joeynmt.yaml"), r"Tokens per Sec: +(\d+)")
EOLE = Peer("eole", "Eole", ("-m", "eole.bin.main", "train", "-c", "eole.yaml"), r"\d+/ *(\d+) tok/s")
PEERS = (JOEYNMT, EOLE)
SETTINGS = Path(__file__).parent / "peers"


def python_of(peer: Peer, environment: Path) -> Path:
    """Return the interpreter of a virtual environment with the peer."""
    if not any(environment.glob(f"lib/python*/site-packages/{peer.package}")):
        raise ValueError(
            f"--{peer.package} {environment}: not a virtual environment with {peer.title}; bench/README.md explains "
            "how to make one"
        )
    return (environment / "bin" / "python").absolute()


def write_texts(text: Mapping[str, TokenPairs], tokenizer: Tokenizer, folder: Path) -> None:
    """Write all that the peers read: the pairs that our sampler uses, split into pieces, the pieces, and settings."""
    for split, pairs in text.items():
        src, tgt = (side.lengths for side in pairs)
        kept = np.flatnonzero((src > 0) & (tgt > 0) & (np.maximum(src, tgt) < COMPARED.batch.max_tokens)).tolist()
        for name, side in zip(("src", "tgt"), pairs, strict=True):
            write_lines(folder / f"{split}.{name}", (" ".join(tokenizer.tokens(side[i].tolist())) for i in kept))
    pieces = tokenizer.tokens(range(len(tokenizer)))
    write_lines(folder / "pieces.txt", (piece for piece in pieces if piece not in (PAD, UNK, BOS, EOS)))
    for peer in PEERS:
        shutil.copy(SETTINGS / f"{peer.package}.yaml", folder)


def train_peer(peer: Peer, job: Job) -> tuple[float, float]:
    """Return target tokens per second, and peak memory in MiB. This process must have had no other child before."""
    shutil.rmtree(job.texts / peer.package, ignore_errors=True)
    threads = {name: str(job.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    process = subprocess.Popen(
        [job.peers[peer.title], "-u", *peer.arguments],
        cwd=job.texts,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | threads,
        text=True,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    last_lines: deque[str] = deque(maxlen=5)
    try:
        rate = logged_rate(process.stdout or (), peer, job, last_lines)
    except ValueError as error:
        raise ValueError(f"{peer.title} {error}; its last lines: {' | '.join(last_lines)}") from error
    finally:
        process.kill()
        process.wait()
    return rate, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def logged_rate(lines: Iterable[str], peer: Peer, job: Job, last_lines: deque[str]) -> float:
    """Return the mean of the rates in a log as it arrives, each weighted by the time since the previous one.

    The first lines, and those of `warm_up` seconds after the first, do not count.
    """
    work = covered = 0.0
    n, last, warm = 0, 0.0, 0.0
    for line in lines:
        last_lines.append(line.strip())
        if rate := re.search(peer.rate, line):
            now = time.perf_counter()
            if n >= PEER_WARM_UP and last >= warm:
                work, covered = work + float(rate[1]) * (now - last), covered + now - last
            n, last, warm = n + 1, now, warm if n else now + job.warm_up
            if covered >= job.seconds:
                return work / covered
    raise ValueError(f"ended after {covered:.0f} of {job.seconds:.0f} seconds")


def timed(step: Step, source: Iterator[Batch], job: Job, min_steps: int) -> float:
    """Return target tokens per second, batching included, after a warm-up of at least `min_steps` steps."""
    for seconds, enough in ((job.warm_up, min_steps), (job.seconds, 1)):
        tokens, n_steps, begin = 0, 0, time.perf_counter()
        while n_steps < enough or time.perf_counter() < begin + seconds:
            batch = next(source)
            step(batch)
            tokens, n_steps = tokens + batch.target_tokens, n_steps + 1
        synchronize(job.device)
    return tokens / (time.perf_counter() - begin)


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
            return Measurement(setting, *train_peer(peer, job), None, {})
    torch.set_num_threads(job.threads)
    torch.manual_seed(1)
    on_cuda, config, batch = job.device.type == "cuda", job.config, job.config.batch
    sampler = BucketSampler(
        job.pairs, setting.tokens_per_batch, batch.max_tokens, 1, batch.length_multiple, batch.sentences_per_batch
    )
    batches: Iterator[Batch] = (batch for n in itertools.count() for batch in sampler.epoch(n))
    warm_up = LONG_WARM_UP if setting.compiled else WARM_UP
    if on_cuda:
        batches, warm_up = itertools.cycle([*itertools.islice(batches, ON_CUDA)]), 3 * ON_CUDA
    source = prefetched(batches, on_cuda)
    try:
        if setting.system == OURS:
            step = our_step(config, build_network(config, *job.vocabs).to(job.device), setting)
        else:
            plain = PlainTransformer(config.model, job.vocabs[1])
            step = plain_step(plain, setting.precision, config.training.label_smoothing)
        rate = timed(step, source, job, warm_up)
    except RuntimeError as error:  # a compiler's own errors cannot be pickled
        raise RuntimeError(f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}") from error
    peak = peak_memory(job.device) / 2**20
    return Measurement(setting, rate, peak, sampler.epoch(0).padding, {} if on_cuda else parts(step, source))


def measure_all(settings: Sequence[Setting], job: Job, rounds: int) -> list[Measurement]:
    """Return the best of all rounds for each setting.

    What may lack memory or a compiler is left out if it fails, with a line that gives the reason.
    """

    def measured(setting: Setting) -> Measurement | None:
        try:
            measurement = in_own_process(measure, setting, job)
        except RuntimeError as error:
            if not setting.compiled and job.device.type == "cpu":
                raise
            print_above_bars(f"{setting}: left out, {error}")
            return None
        print_above_bars(f"{setting}: {measurement.tokens_per_s:,.0f} target tokens per second")
        return measurement

    by_setting = ([m for m in results if m] for results in in_rounds(settings, measured, rounds).values())
    return [max(results, key=lambda m: m.tokens_per_s) for results in by_setting if results]


def all_settings(job: Job, names: Sequence[str], compiled: bool, without: Sequence[str] = ()) -> list[Setting]:
    """Return ours and, if the job is that of all systems, the plain loop and the peers; on a GPU ours in three forms.

    `names` are the precisions on a CPU. If `without` names twins, ours alone: with all of them, and without each.
    """
    ours = partial(Setting, OURS, tokens_per_batch=job.config.batch.tokens_per_batch)
    if without:
        return [ours(precision, without=name) for precision in names for name in ("", *without)]
    if job.device.type == "cuda":  # kernel by kernel, by CUDA graphs, and compiled as well
        return [ours("bf16", without="graphs"), ours("bf16"), ours("bf16", compiled=True)]
    settings = [ours(precision, compiled=c) for c in sorted({False, compiled}) for precision in names]
    if job.config.model == COMPARED.model:
        settings += [Setting(PLAIN, precision) for precision in names]
    return settings + [Setting(peer, "fp32") for peer in job.peers]


def summary(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Return all speeds by names for a line of name=value pairs."""
    figures = {}
    for s, speed in ((m.setting, m.tokens_per_s) for m in measurements):
        without = f"_without_{s.without}" if s.without else ""
        name = f"{s.system.lower().replace('.', '_')}_{s.precision}{'_compiled' * s.compiled}{without}_tokens_per_s"
        figures[name] = speed
    return figures


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = benchmark_parser(
        "train",
        "Compare training speed: this project, a plain loop over torch.nn.Transformer, other toolkits.",
        """  python -m bench.train                                      this project and torch.nn.Transformer, on Tanaka
  python -m bench.train --archive small_parallel_enja.tar.xz --joeynmt VENV --eole VENV --json train.json
  python -m bench.train --compile                            with torch.compile too (needs a C++ compiler)
  python -m bench.train --without byte_dropout               what a part of it is worth
  python -m bench.train --warm-up 1 --seconds 5 --rounds 1   a quick look
  GOMP_SPINCOUNT=300000 python -m bench.train --busy 1       beside another program, with the spinning of libgomp itself
  python -m bench.train --config kftt_ja_en                  this project alone, with the settings of a preset
  python -m bench.train --device cuda                        kftt_ja_en: kernel by kernel, by CUDA graphs, compiled""",
        threads=(torch.get_num_threads(), "CPU threads"),
        warm_up=(60.0, "seconds of each setting that do not count"),
        seconds=(60.0, "seconds of each setting that count"),
        rounds=(3, "rounds, of which the best counts"),
        busy=(0, "other processes that want a core each, meanwhile"),
    )
    parser.add_argument("--config", type=Path, metavar="PRESET", help="this project alone, with these settings")
    parser.add_argument("--corpus", choices=("tanaka", "kftt", "embedded"), help="default: the preset's, or tanaka")
    parser.add_argument("--archive", type=Path, help="local archive or unpacked folder of the corpus")
    for peer in PEERS:
        text = f"virtual environment with {peer.title}"
        parser.add_argument(f"--{peer.package}", type=Path, metavar="VENV", help=text)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    text = "measure ours alone: with all that makes it faster, and without each of these"
    parser.add_argument("--without", nargs="+", choices=TWINS, metavar="NAME", help=f"{text} ({', '.join(TWINS)})")
    text = "beside fp32 (default: what auto could choose on this processor)"
    parser.add_argument("--precisions", nargs="+", choices=("bf16",), help=text)
    parser.add_argument("--compile", action="store_true", help="also measure with torch.compile (always on CUDA)")
    return parser


@contextmanager
def busy(n: int) -> Iterator[None]:
    """Within the block, n other processes want a core each."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for other in others:
            other.kill()


def prepare(arguments: Namespace, folder: Path) -> tuple[Job, float]:
    """Return all that the settings need, and the operations per target token."""
    require_options_at_least(arguments, threads=1, warm_up=0, seconds=0, rounds=1, busy=0)
    device, alone = pick_device(arguments.device), arguments.config
    if alone is None and device.type == "cuda":
        alone = Path(ON_A_GPU)
    given = {peer: arguments[peer.package] for peer in PEERS if arguments[peer.package]}
    if given and alone:
        raise ValueError(f"{alone} is measured with this project alone: leave out --joeynmt and --eole")
    peers = {peer.title: python_of(peer, environment) for peer, environment in given.items()}
    config = TranslationConfig.load(find_settings(alone)) if alone else COMPARED
    if not isinstance(config.model, TransformerConfig):
        raise ValueError(f"--config {alone}: its network is no Transformer, whose operations could be counted")
    given_data = {name: arguments[name] for name in ("corpus", "archive") if arguments[name] is not None}
    config = replace(config, data=replace(config.data, **given_data))
    corpus = prepare_corpus(config.data)
    tokenizers = cached_tokenizers(corpus, config.tokenizer, print)
    train = cached_tokens(corpus, "train", tokenizers, print)
    if peers:
        dev = cached_tokens(corpus, "dev", tokenizers, print)
        write_texts({"train": train, "dev": dev}, tokenizers.tgt, folder)

    vocabs = len(tokenizers.src), len(tokenizers.tgt)
    src, tgt = (side.lengths.astype(np.int64) + 1 for side in train)
    flops_per_token = float(training_flops(config.model, vocabs[1], src, tgt).sum() / tgt.sum())
    job = Job(
        config,
        pairs=train,
        vocabs=vocabs,
        device=device,
        threads=arguments.threads,
        warm_up=arguments.warm_up,
        seconds=arguments.seconds,
        texts=folder,
        peers=peers,
    )
    return job, flops_per_token


def main() -> None:
    """Measure, print the table and write the results."""
    arguments = build_parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job, flops_per_token = prepare(arguments, Path(folder))
        torch.set_num_threads(job.threads)
        names = ["bf16"]
        if job.device.type == "cpu":
            names = precisions(arguments.precisions, ("bf16",), job.config.model.d_model, learning=True)
        peaks = {name: product_peak(PRECISIONS[name], job.device) for name in names}
        settings = all_settings(job, names, arguments.compile, arguments.without or ())
        with busy(arguments.busy):
            measurements = measure_all(settings, job, arguments.rounds)
    if not measurements:
        raise ValueError("nothing could be measured: see the lines above")
    record = {
        "name": arguments.corpus or job.config.name,
        "machine": machine(job.device),
        "warm_up": arguments.warm_up,
        "seconds": arguments.seconds,
        "busy": arguments.busy,
        "spins": os.environ.get("GOMP_SPINCOUNT"),
        "config": job.config.plain(),
        "vocab": job.vocabs[1],
        "mflop_per_target_token": flops_per_token / 1e6,
        "product_gflops": peaks,
        "measurements": [asdict(measurement) for measurement in measurements],
    }
    print(train_table([record]))
    publish(summary(measurements), record, arguments.json)


if __name__ == "__main__":
    run_command("bench.train", main)
