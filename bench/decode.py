"""Decoding speed of a run, CTranslate2 with the same weights, and a loop without caches: `python -m bench.decode`.

Each setting is measured in a separate process, for its own peak memory, and in several rounds, so that a machine that
slows down in the meantime slows all of them.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import ctranslate2
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm import tqdm

from bench.measure import add_json_option, product_peak, publish
from config.training import Precision
from const.token import PAD_ID
from layers.mask import padding_mask
from models.transformer import Transformer
from utils.command import Parser, require_options_at_least, run_command
from utils.dataset.corpus import prepare_to_score
from utils.dataset.text import read_parallel
from utils.device import keep_freed_memory
from utils.evaluation.metric import corpus_metrics
from utils.export.ctranslate2 import to_ctranslate2
from utils.run import build_translator, find_run, load_run
from utils.search.translator import Translator
from utils.text.tokenizer import id_of_each, load_tokenizers
from utils.training.dry_run import peak_memory

OURS, RECOMPUTING, CTRANSLATE2 = "miyako", "without caches", "CTranslate2"
BATCH_SIZES = (32, 64, 128, 256)  # CTranslate2 is measured with its best
LONGEST = 256  # tokens, if translations end by themselves
ONE_BY_ONE = 50  # sentences are enough if each is translated alone

Decode = Callable[[list[list[int]]], list[list[int]]]  # ids of sources -> ids of translations


@dataclass(frozen=True)
class Setting:
    """A setting to measure."""

    system: str
    precision: str
    beam: int
    batched: bool


@dataclass(frozen=True)
class Job:
    """What all settings have in common.

    Args:
        run: folder of the run.
        exported: folder of the same weights for CTranslate2.
        sources: ids of each sentence.
        n_tokens: number of tokens to generate for each sentence; 0: until </s>.
        threads: number of CPU threads.
    """

    run: Path
    exported: Path
    sources: list[list[int]]
    n_tokens: int
    threads: int


@dataclass(frozen=True)
class Measurement:
    """The measurement of one setting.

    Args:
        setting: the measured setting.
        batch: sentences per batch, if that is fixed.
        sentences_per_s: sentences translated per second.
        tokens_per_s: target tokens generated per second, without </s>.
        peak_mib: peak memory of the process.
        translations: target ids of each sentence.
    """

    setting: Setting
    batch: int | None
    sentences_per_s: float
    tokens_per_s: float
    peak_mib: float
    translations: list[list[int]]


class RecomputingState(NamedTuple):
    """All tokens so far, and the whole source in every row."""

    memory: Float[Tensor, "R S D"]
    mask: Bool[Tensor, "R 1 1 S"]
    said: Int[Tensor, "R t"]

    def select(self, rows: Int[Tensor, "N W"]) -> "RecomputingState":
        """Copy the rows."""
        return RecomputingState(*(tensor.index_select(0, rows.flatten()) for tensor in self))


class Recomputing:
    """Searchable that recomputes the whole prefix at each step, as a loop over a model's `forward` does."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def start(self, src: Int[Tensor, "N S"]) -> RecomputingState:
        """Read the sources."""
        said = torch.empty(len(src), 0, dtype=torch.long)
        return RecomputingState(self.model.encode(src), padding_mask(src, PAD_ID), said)

    def step(self, tokens: Int[Tensor, " R"], state: RecomputingState) -> tuple[Float[Tensor, "R V"], RecomputingState]:
        """Decode everything up to the new token again."""
        said = torch.cat([state.said, tokens[:, None]], 1)
        x = self.model.decode(said, state.memory, state.mask)
        return self.model.project(x[:, -1]), state._replace(said=said)


def our_translator(setting: Setting, job: Job) -> Translator:
    """Build our translator with the search of a setting."""
    run = load_run(job.run, torch.device("cpu"))
    search = replace(run.config.search, beam_size=setting.beam)
    if job.n_tokens:
        # the last step gives </s>, where CTranslate2 gives one more token: the same number of steps for both
        search = replace(search, min_length=job.n_tokens - 1, max_length=job.n_tokens - 1, min_ratio=0.0, max_ratio=99)
    precision: Precision = "bf16" if setting.precision == "bf16" else "fp32"
    translator = build_translator([run], search, precision=precision)
    if setting.system == RECOMPUTING:
        translator.model = Recomputing(run.model)
    return translator


class Exported:
    """Decodes with the same weights in CTranslate2."""

    def __init__(self, setting: Setting, job: Job) -> None:
        self._setting = setting
        self._n_tokens = job.n_tokens
        self._tokenizers = load_tokenizers(job.run)
        tgt = self._tokenizers.tgt
        self._ids = id_of_each(tgt)
        self._translator = ctranslate2.Translator(
            str(job.exported), device="cpu", compute_type=setting.precision, intra_threads=job.threads, inter_threads=1
        )

    def decode(self, batch: int, sources: list[list[int]]) -> list[list[int]]:
        """Translate source ids to target ids, `batch` sentences at a time."""
        found = self._translator.translate_batch(
            [self._tokenizers.src.tokens(source) for source in sources],
            beam_size=self._setting.beam,
            max_batch_size=batch,
            min_decoding_length=self._n_tokens,
            max_decoding_length=self._n_tokens or LONGEST,
        )
        return [[self._ids[token] for token in translation.hypotheses[0]] for translation in found]


def decoders(setting: Setting, job: Job) -> list[tuple[int | None, Decode]]:
    """Return the batch sizes to try for a setting, each with its decoder; None: batches by token budget."""
    if setting.system == CTRANSLATE2:
        exported = Exported(setting, job)
        return [(size, partial(exported.decode, size)) for size in (BATCH_SIZES if setting.batched else (1,))]
    translator = our_translator(setting, job)
    return [(None, lambda sources: [found[0].ids for found in translator.search_ids(sources)])]


def measure(setting: Setting, job: Job) -> Measurement:
    """Translate everything with each batch size; the fastest counts."""
    torch.set_num_threads(job.threads)
    keep_freed_memory()
    sources = job.sources if setting.batched else job.sources[:: -(-len(job.sources) // ONE_BY_ONE)]
    found = []
    for batch, decode in decoders(setting, job):
        decode(sources[: len(sources) // 8 + 1])
        begin = time.perf_counter()
        translations = decode(sources) if setting.batched else [decode([source])[0] for source in sources]
        seconds = time.perf_counter() - begin
        n_tokens = sum(len(ids) for ids in translations)
        peak = peak_memory(torch.device("cpu")) / 2**20
        speeds = len(sources) / seconds, n_tokens / seconds
        found.append(Measurement(setting, batch, *speeds, peak, translations))
    return max(found, key=lambda measurement: measurement.sentences_per_s)


def measure_all(settings: Sequence[Setting], job: Job, rounds: int) -> list[Measurement]:
    """Return the best of all rounds for each setting, measured one process at a time."""
    best: dict[Setting, Measurement] = {}
    spawn = multiprocessing.get_context("spawn")  # a forked child would inherit its parent's peak
    with (
        ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool,
        tqdm(total=rounds * len(settings), unit="measurement", disable=None) as bar,
    ):
        for _ in range(rounds):
            for setting in settings:
                bar.set_postfix_str(f"{setting.system} {setting.precision} beam {setting.beam}")
                found = pool.submit(measure, setting, job).result()
                if setting not in best or found.sentences_per_s > best[setting].sentences_per_s:
                    best[setting] = found
                bar.update()
    return [best[setting] for setting in settings]


def all_settings() -> list[Setting]:
    """Return all settings, those to be compared next to each other."""
    settings = []
    for batched in (True, False):
        for beam in (1, 5):
            settings += [Setting(OURS, precision, beam, batched) for precision in ("fp32", "bf16")]
            settings += [Setting(CTRANSLATE2, precision, beam, batched) for precision in ("float32", "int8")]
            if batched:
                settings.append(Setting(RECOMPUTING, "fp32", beam, batched))
    return settings


def baseline(measurements: Sequence[Measurement], setting: Setting) -> Measurement:
    """Return the measurement of CTranslate2 in single precision with the same search."""
    wanted = replace(setting, system=CTRANSLATE2, precision="float32")
    return next(found for found in measurements if found.setting == wanted)


def table(measurements: Sequence[Measurement], references: Sequence[str], bleu: Callable[[Measurement], float]) -> str:
    """Return a table with a line for each setting, with BLEU if there are references."""
    head = f"{'system':15} {'precision':9} {'beam':>4} {'batch':>7} {'sentences/s':>12} {'tokens/s':>9} {'MiB':>6}"
    lines = [f"{head} {'x CTranslate2':>14}{'   BLEU' if references else ''}"]
    for found in measurements:
        s = found.setting
        ratio = found.sentences_per_s / baseline(measurements, s).sentences_per_s
        batch = "1" if not s.batched else str(found.batch or "budget")
        lines.append(
            f"{s.system:15} {s.precision:9} {s.beam:>4} {batch:>7} {found.sentences_per_s:>12.1f} "
            f"{found.tokens_per_s:>9.0f} {found.peak_mib:>6.0f} {ratio:>14.2f}"
            f"{f'{bleu(found):>7.2f}' if references and s.batched else ''}"
        )
    return "\n".join(lines)


def ratios(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Return our speed relative to CTranslate2 in single precision, for each of our settings."""
    figures = {}
    for found in measurements:
        s = found.setting
        if s.system == OURS:
            name = (
                f"{s.precision}_{'greedy' if s.beam == 1 else f'beam{s.beam}'}_{'batched' if s.batched else 'single'}"
            )
            figures[f"{name}_x"] = found.sentences_per_s / baseline(measurements, s).sentences_per_s
    return figures


def equality(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Return the share of sentences that our greedy search and the others translate identically, token for token."""
    greedy = {
        (found.setting.system, found.setting.precision): found
        for found in measurements
        if found.setting.beam == 1 and found.setting.batched
    }
    ours = greedy[OURS, "fp32"].translations
    others = {
        "ctranslate2": greedy[CTRANSLATE2, "float32"],
        "without_caches": greedy[RECOMPUTING, "fp32"],
        "bf16": greedy[OURS, "bf16"],
    }
    return {
        f"greedy_equal_{name}": sum(a == b for a, b in zip(ours, other.translations, strict=True)) / len(ours)
        for name, other in others.items()
    }


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = Parser(
        prog="bench.decode",
        usage="python -m bench.decode [--run RUN] [--sentences N] [--tokens N] [--rounds N] [--json FILE]",
        description="Compare decoding with a run on this CPU: this project, CTranslate2, and a loop without caches.",
        epilog="""examples:
  python -m bench.decode                                     the newest run, 500 sentences, until </s>
  python -m bench.decode --tokens 20                         exactly 20 steps per sentence: the same work for all
  python -m bench.decode --run pickles/RUN --json decode.json
  python -m bench.decode --sentences 50 --rounds 1           a quick look""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", type=Path, help="folder or name of a run (default: the one trained last)")
    parser.add_argument(
        "--sentences", type=int, default=500, help="number of sentences of the run's test set (default: 500)"
    )
    parser.add_argument("--tokens", type=int, default=0, help="force N tokens per sentence (default: until </s>)")
    parser.add_argument("--rounds", type=int, default=2, help="number of rounds, of which the best counts (default: 2)")
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="CPU threads (default: one per core)"
    )
    add_json_option(parser)
    return parser


def main() -> None:
    """Measure, print the table and write the results."""
    arguments = build_parser().parse_args()
    require_options_at_least(arguments, sentences=1, rounds=1, threads=1, tokens=0)
    run = load_run(find_run(arguments.run), torch.device("cpu"))
    if arguments.tokens > (most := run.config.model.max_length):
        raise ValueError(f"--tokens {arguments.tokens}: this run generates at most {most}, </s> included")
    corpus = prepare_to_score(run.config.data)
    text = read_parallel(corpus.test)[: arguments.sentences]
    sources = [ids[: run.window - 1] for ids in run.tokenizers.src.encode(text.src)]
    references = [] if arguments.tokens else text.tgt

    metric = corpus_metrics(corpus)["BLEU"]

    def bleu(found: Measurement) -> float:
        return metric.corpus_score(run.tokenizers.tgt.decode(found.translations), [references]).score

    torch.set_num_threads(arguments.threads)
    peaks = {str(dtype)[6:]: product_peak(dtype) for dtype in (torch.float32, torch.bfloat16)}
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "model"
        to_ctranslate2(run.model, run.tokenizers, exported)
        job = Job(run.folder, exported, sources, arguments.tokens, arguments.threads)
        measurements = measure_all(all_settings(), job, arguments.rounds)
    lengths = sum(map(len, sources)) / len(sources)
    print(
        f"{run.folder.name}: {len(sources)} sentences of {corpus.name}, {lengths:.1f} source tokens each, "
        f"{arguments.threads} threads; matrix products peak at "
        f"{', '.join(f'{peak:.0f} GFLOP/s in {name}' for name, peak in peaks.items())}\n"
    )
    print(table(measurements, references, bleu))
    figures = ratios(measurements)
    if not arguments.tokens:  # with forced lengths, ours ends with </s> where theirs has one more token
        figures |= equality(measurements)
    rows = [{k: v for k, v in asdict(found).items() if k != "translations"} for found in measurements]
    about = {
        "name": run.config.name,
        "sentences": len(sources),
        "source_tokens": round(lengths, 1),
        "tokens": arguments.tokens,
        "threads": arguments.threads,
        "product_gflops": peaks,
        "measurements": rows,
    }
    publish(figures, about, arguments.json)


if __name__ == "__main__":
    run_command("bench.decode", main)
