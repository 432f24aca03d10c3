"""Time and memory of preparing a text of many short pairs and batching it: `python -m bench.data`."""

import resource
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.measure import benchmark_parser, in_own_process, publish
from config.data import BatchConfig, DataConfig, TokenizerConfig
from utils.command import Parser, require_options_at_least, run_command
from utils.dataset.batch import BucketSampler, prefetched
from utils.dataset.corpus import prepare_corpus
from utils.dataset.ids import cached_tokenizers, cached_tokens, training_tokens
from utils.dataset.text import ParallelFiles, write_pairs

_FEWEST_PAIRS = 2000  # fewer do not suffice for a vocabulary
_N_BATCHES = 1000


def write_text(files: ParallelFiles, n_pairs: int) -> None:
    """Write lines of 5 to 15 words with natural frequencies (Zipf), and translate them word by word, reversed."""
    draw = np.random.default_rng(0)
    syllables = [c + v for c in "bcdfghjklmnprstvwz" for v in "aeiou"]
    words = [a + b + c for a in syllables for b in syllables for c in syllables[:6]]
    src, tgt = draw.permutation(words).tolist(), draw.permutation(words).tolist()
    chances = (1 / (np.arange(len(words)) + 2.7)).cumsum()
    sizes = draw.integers(5, 16, n_pairs).tolist()
    lines = (np.searchsorted(chances, draw.random(size) * chances[-1]).tolist() for size in sizes)
    write_pairs(files, ((" ".join(src[i] for i in line), " ".join(tgt[i] for i in reversed(line))) for line in lines))


def prepare(files: ParallelFiles, root: Path, tokenizer: TokenizerConfig) -> dict[str, float]:
    """Do what train.py does up to the first update, then make some batches; return seconds and the peak of memory."""
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        seconds[part] = time.perf_counter() - begin
        print(f"{part} {seconds[part]:.1f} s", flush=True)

    batch = BatchConfig()
    data = DataConfig(src=files.src, tgt=files.tgt, src_lang="xx", tgt_lang="yy", held_out=400)
    with timed("corpus"):
        corpus = prepare_corpus(data, root)
    with timed("vocabulary"):  # including the cleaning before it
        pair = cached_tokenizers(corpus, tokenizer, print)
    with timed("ids"):
        train = training_tokens(corpus, pair, tokenizer.sampling, 1, print)
        train(0)
        for split in ("dev", "test"):
            cached_tokens(corpus, split, pair, print)
    with timed("epoch"):
        epoch = BucketSampler(train, batch.tokens_per_batch, batch.max_tokens, 1).epoch(0)
    start, n = sum(seconds.values()), min(_N_BATCHES, len(epoch))
    with timed("batches"):
        deque(prefetched(epoch[i] for i in range(n)), maxlen=0)
    main, worker = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    worker *= tokenizer.sampling > 0  # without sampling there are no workers
    return {"start_s": start, "batches_per_s": n / seconds["batches"], "peak_mib": main, "peak_worker_mib": worker}


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = benchmark_parser(
        "data",
        "Prepare a synthetic text of many pairs, twice: from scratch, and from the cache.",
        """  python -m bench.data --folder /tmp/data                      ten million pairs: 6 GB of disk, some minutes
  python -m bench.data --folder /tmp/data --pairs 100000       a quick look""",
        pairs=(10_000_000, "number of pairs"),
        sampling=(0.0, "sub-word sampling, see train.py"),
        vocab_size=(8000, "number of pieces"),
    )
    parser.add_argument("--folder", type=Path, required=True, help="folder for texts and caches, which are kept")
    return parser


def main() -> None:
    """Write the text, prepare it twice, each time in a process of its own, and print time and memory."""
    arguments = build_parser().parse_args()
    require_options_at_least(arguments, pairs=_FEWEST_PAIRS)
    folder, n_pairs = arguments.folder, arguments.pairs
    if (root := folder / f"corpus-{n_pairs}").exists():
        raise ValueError(f"{root} is left over from an earlier run: delete it, or give another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    files = ParallelFiles(folder / f"text-{n_pairs}.src", folder / f"text-{n_pairs}.tgt")
    write_text(files, n_pairs)
    tokenizer = TokenizerConfig(vocab_size=arguments.vocab_size, sampling=arguments.sampling)
    cold, warm = (in_own_process(prepare, files, root, tokenizer) for _ in range(2))
    figures = {
        "minutes": cold["start_s"] / 60,
        "pairs_per_s": n_pairs / cold["start_s"],
        **{name: max(cold[name], warm[name]) for name in ("peak_mib", "peak_worker_mib")},
        "warm_start_s": warm["start_s"],
        "batches_per_s": warm["batches_per_s"],
    }
    publish(figures, {"pairs": n_pairs, "sampling": arguments.sampling}, arguments.json)


if __name__ == "__main__":
    run_command("bench.data", main)
