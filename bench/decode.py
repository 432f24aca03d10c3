"""Decoding speed of a run, CTranslate2 with the same weights, and a loop without caches: `python -m bench.decode`."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import ctranslate2
import numpy as np
import torch

from bench.measure import (
    benchmark_parser,
    forward_flops,
    in_own_process,
    in_rounds,
    precisions,
    product_peak,
    publish,
    reading_speed,
)
from bench.results import decode_table
from config.model import TransformerConfig
from config.training import InferencePrecision
from layers.packed import multiplies_int8
from models.stepwise import Recomputing
from models.transformer import Transformer
from utils.command import Parser, require_options_at_least, run_command
from utils.dataset.corpus import prepare_to_score
from utils.dataset.text import read_parallel
from utils.evaluation.metric import corpus_metrics
from utils.export.ctranslate2 import to_ctranslate2
from utils.load import build_translator, load_run
from utils.memory import keep_freed_memory
from utils.provenance import machine
from utils.run import find_run
from utils.search.searcher import BeamSearch
from utils.search.translator import Translator
from utils.text.tokenizer import id_of_each, load_tokenizers
from utils.training.dry_run import peak_memory

OURS, RECOMPUTING, CTRANSLATE2 = "miyako", "without caches", "CTranslate2"
BATCH_SIZES = (32, 64, 128, 256)  # CTranslate2 is measured with its best, and its best number of threads
LONGEST = 256  # tokens, if translations end by themselves
PASSES = 4  # over the text; the first ones take memory from the system and compile kernels, and the fastest counts
LONG_ENOUGH = 10  # seconds, after which no further pass begins
FEW = 50  # sentences are enough if each is translated alone, or without caches
_PEAK = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}  # of a weight

Decode = Callable[[list[list[int]]], list[list[int]]]  # ids of sources -> ids of translations


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    system: str
    precision: str
    beam: int
    batched: bool

    def __str__(self) -> str:
        return f"{self.system} {self.precision}, beam {self.beam}, {'batched' if self.batched else 'one by one'}"


@dataclass(frozen=True)
class Job:
    """What all settings have in common."""

    run: Path
    exported: Path  # the same weights for CTranslate2
    sources: list[list[int]]
    n_tokens: int  # to generate for each sentence; 0: until </s>
    threads: int

    def translated_by(self, setting: Setting) -> list[list[int]]:
        """Return the sources of a setting: some, at equal distances, if it is slow."""
        is_slow = not setting.batched or setting.system == RECOMPUTING
        return self.sources[:: -(-len(self.sources) // FEW)] if is_slow else self.sources


@dataclass(frozen=True)
class Measurement:
    """The measurement of one setting."""

    setting: Setting
    batch: int | None  # sentences per batch; None: batches by token budget
    threads: int
    sentences_per_s: float
    tokens_per_s: float  # target tokens without </s>
    peak_mib: float  # of the process
    translations: list[list[int]]


def our_translator(setting: Setting, job: Job) -> Translator:
    """Build our translator with the search of a setting."""
    run = load_run(job.run, torch.device("cpu"))
    search = replace(run.config.search, beam_size=setting.beam)
    if job.n_tokens:
        # the last step gives </s>, where CTranslate2 gives one more token: the same number of steps for both
        search = replace(search, min_length=job.n_tokens - 1, max_length=job.n_tokens - 1, min_ratio=0.0, max_ratio=99)
    translator = build_translator([run], search, precision=cast(InferencePrecision, setting.precision))
    if setting.system == RECOMPUTING:
        translator.searcher = BeamSearch(Recomputing.of(run.transformer), torch.device("cpu"))
    return translator


def decoders(setting: Setting, job: Job) -> Iterator[tuple[int | None, int, Decode]]:
    """Yield the batch sizes (None: by token budget) and numbers of threads to try for a setting, with a decoder."""
    if setting.system != CTRANSLATE2:
        translator = our_translator(setting, job)

        def decode_ours(sources: list[list[int]]) -> list[list[int]]:
            return [hypotheses[0].ids for hypotheses in translator.find([*map(translator.request, sources)])]

        yield None, job.threads, decode_ours
        return
    tokenizers = load_tokenizers(job.run)
    ids = id_of_each(tokenizers.tgt)

    def decode(model: ctranslate2.Translator, size: int, sources: list[list[int]]) -> list[list[int]]:
        translations = model.translate_batch(
            [tokenizers.src.tokens(source) for source in sources],
            beam_size=setting.beam,
            max_batch_size=size,
            min_decoding_length=job.n_tokens,
            max_decoding_length=job.n_tokens or LONGEST,
        )
        return [[ids[token] for token in translation.hypotheses[0]] for translation in translations]

    # a second one may slow it down tenfold, if sentences are translated one by one
    for threads in {job.threads} if setting.batched else {1, job.threads}:
        model = ctranslate2.Translator(
            str(job.exported), device="cpu", compute_type=setting.precision, intra_threads=threads, inter_threads=1
        )
        for size in BATCH_SIZES if setting.batched else (1,):
            yield size, threads, partial(decode, model, size)


def fastest(measurements: Sequence[Measurement]) -> Measurement:
    """Return the measurement that counts, of several batch sizes, numbers of threads, passes or rounds."""
    return max(measurements, key=lambda measurement: measurement.sentences_per_s)


def measure(setting: Setting, job: Job) -> Measurement:
    """Translate everything with each batch size and number of threads, several times; the fastest counts."""
    torch.set_num_threads(job.threads)
    keep_freed_memory()
    sources = job.translated_by(setting)
    measurements: list[Measurement] = []
    for batch, threads, decode in decoders(setting, job):
        first = time.perf_counter()
        for n_passes in range(PASSES):
            begin = time.perf_counter()
            if n_passes and begin - first > LONG_ENOUGH:
                break
            translations = decode(sources) if setting.batched else [decode([source])[0] for source in sources]
            seconds = time.perf_counter() - begin
            measurement = Measurement(
                setting,
                batch,
                threads,
                sentences_per_s=len(sources) / seconds,
                tokens_per_s=sum(map(len, translations)) / seconds,
                peak_mib=peak_memory(torch.device("cpu")) / 2**20,
                translations=translations,
            )
            measurements.append(measurement)
    return fastest(measurements)


class Limit:
    """What this machine could do at most with the weights of a network, in a precision."""

    def __init__(self, net: Transformer, config: TransformerConfig, precision: str) -> None:
        self.config, self.vocab, size = config, net.output.out_features, _BYTES[precision]
        # where integers are not multiplied fast, weights of eight bits become single precision in the product
        is_single = precision == "int8" and not multiplies_int8()
        self.flops = 1e9 * product_peak(_PEAK["fp32" if is_single else precision])
        self.once, self.each_step = (
            size * sum(p.numel() for part in parts for p in part.parameters())
            for parts in ((net.encoder,), (net.decoder, net.output))
        )
        self.bytes = 1e9 * reading_speed(self.each_step)

    def sentences_per_s(self, measured: Measurement, sources: Sequence[Sequence[int]]) -> float:
        """Return how many sentences a second it allows of those that a setting has translated.

        In batches, its operations at the peak of matrix products. One by one, as long as reading the weights takes if
        that is longer: those of the decoder and the output at each step, those of the encoder once.
        """
        src, tgt = (np.array([*map(len, ids)]) for ids in (sources, measured.translations))
        flops = forward_flops(self.config, self.vocab, src, tgt + 1, measured.setting.beam).mean()
        seconds = flops / self.flops
        if not measured.setting.batched:
            seconds = max(seconds, (self.once + self.each_step * (tgt.mean() + 1)) / self.bytes)
        return float(1 / seconds)


def all_settings(names: Sequence[str]) -> list[Setting]:
    """Return all settings, ours in these precisions, those to be compared next to each other."""
    systems = [*((OURS, name) for name in names), (CTRANSLATE2, "float32"), (RECOMPUTING, "fp32")]
    return [
        Setting(system, precision, beam, batched)
        for batched in (True, False)
        for beam in (1, 5)
        for system, precision in systems
        if batched or system != RECOMPUTING
    ]


def summary(measurements: Sequence[Measurement], bleu: Callable[[Measurement], float] | None) -> dict[str, float]:
    """Return our speed relative to CTranslate2 in single precision with the same search.

    Where translations end by themselves, so that there is a `bleu`: also BLEU, and the share of sentences that our
    greedy search in single precision and another translate identically, token for token.
    """
    by_setting, figures = {m.setting: m for m in measurements}, {}
    ours = by_setting[Setting(OURS, "fp32", 1, True)].translations
    for s, measurement in by_setting.items():
        search = f"{'greedy' if s.beam == 1 else f'beam{s.beam}'}_{'batched' if s.batched else 'single'}"
        if s.system == OURS:
            base = by_setting[replace(s, system=CTRANSLATE2, precision="float32")]
            figures[f"{s.precision}_{search}_x"] = measurement.sentences_per_s / base.sentences_per_s
        if not bleu or not s.batched or s.system == RECOMPUTING:
            continue
        figures[f"{s.system.lower()}_{s.precision}_{search}_bleu"] = bleu(measurement)
        if s.beam == 1:
            name = s.precision if s.system == OURS else s.system.lower()
            figures[f"greedy_equal_{name}"] = sum(map(list.__eq__, ours, measurement.translations)) / len(ours)
    return figures


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = benchmark_parser(
        "decode",
        "Compare decoding with a run on this CPU: this project, CTranslate2, and a loop without caches.",
        """  python -m bench.decode                                     the newest run, 500 sentences, until </s>
  python -m bench.decode --tokens 20                         exactly 20 steps per sentence: the same work for all
  python -m bench.decode --run pickles/RUN --json decode.json
  python -m bench.decode --sentences 50 --rounds 1           a quick look""",
        sentences=(500, "sentences of the run's test set"),
        tokens=(0, "force N tokens per sentence; 0: until </s>"),
        rounds=(2, "rounds, of which the best counts"),
        threads=(torch.get_num_threads(), "CPU threads"),
    )
    text = "beside fp32 (default: what auto could choose on this processor)"
    parser.add_argument("--precisions", nargs="+", choices=("bf16", "int8"), help=text)
    parser.add_argument("--run", type=Path, help="folder or name of a run (default: the one trained last)")
    return parser


def main() -> None:
    """Measure, print the table and write the results."""
    arguments = build_parser().parse_args()
    require_options_at_least(arguments, sentences=1, rounds=1, threads=1, tokens=0)
    run = load_run(find_run(arguments.run), torch.device("cpu"))
    if arguments.tokens > (max_length := run.config.model.max_length):
        raise ValueError(f"--tokens {arguments.tokens}: this run generates at max_length {max_length}, </s> included")
    corpus = prepare_to_score(run.config.data)
    text = read_parallel(corpus.test)[: arguments.sentences]
    sources = [ids[: run.window - 1] for ids in run.tokenizers.src.encode(text.src)]
    metric = corpus_metrics(corpus)["BLEU"]

    def bleu(measurement: Measurement) -> float:
        return metric.corpus_score(run.tokenizers.tgt.decode(measurement.translations), [text.tgt]).score

    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "model"
        to_ctranslate2(run.transformer, run.tokenizers, exported)
        job = Job(run.folder, exported, sources, arguments.tokens, arguments.threads)
        names = precisions(arguments.precisions, ("bf16", "int8"), run.config.model.d_model, learning=False)
        rounds = in_rounds(all_settings(names), lambda setting: in_own_process(measure, setting, job), arguments.rounds)
    measurements = [fastest(measured) for measured in rounds.values()]
    limits = {name: Limit(run.transformer, run.config.model, name) for name in names}

    def row(measured: Measurement) -> dict[str, object]:
        limit = limits[measured.setting.precision.replace("float", "fp")]
        share = measured.sentences_per_s / limit.sentences_per_s(measured, job.translated_by(measured.setting))
        return {k: v for k, v in asdict(measured).items() if k != "translations"} | {"of_the_limit": share}

    record = {
        "name": run.config.name,
        "sentences": len(sources),
        "source_tokens": round(sum(map(len, sources)) / len(sources), 1),
        "tokens": arguments.tokens,
        "machine": machine(torch.device("cpu")),
        "measurements": [*map(row, measurements)],
    }
    print(decode_table([record]))
    # with forced lengths, ours ends with </s> where theirs has one more token
    publish(summary(measurements, None if arguments.tokens else bleu), record, arguments.json)


if __name__ == "__main__":
    run_command("bench.decode", main)
