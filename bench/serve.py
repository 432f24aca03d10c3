"""Serving many clients at once: `python -m bench.serve` starts a server, sends requests, and checks every answer.

The throughput of many clients is compared with that of a single one, with the same server, sentences and search. Each
client sends its next request when it has its answer.
"""

import asyncio
import contextlib
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import httpx
import torch

from bench.measure import benchmark_parser, publish
from const.path import ROOT
from utils.command import Parser, require_options_at_least, run_command
from utils.dataset.corpus import prepare_to_score
from utils.dataset.text import read_parallel
from utils.load import Run, build_translator, load_run
from utils.run import find_run
from utils.search.translator import Translator

PATIENCE = 60.0  # seconds to wait for an answer, and for the server to end


class Answer(NamedTuple):
    """An answer to a client."""

    text: str  # of the request
    translation: str | None  # None: an error
    seconds: float  # waiting time


class Measurement(NamedTuple):
    """The results for a number of clients."""

    clients: int
    answers: int  # with a translation
    errors: int  # requests without one
    mixed_up: int  # answers with the translation of another text
    differing: int  # other answers that match neither the offline translation nor that of the text alone
    ties: int  # answers that match the translation of the text alone, but not the one found offline in a batch
    sentences_per_s: float
    p50_ms: float  # of the waiting times
    p99_ms: float


@contextmanager
def served(run: Path, *options: str) -> Iterator[str]:
    """Yield the address of a server in a separate process, which is stopped at the end of the block."""
    command = [sys.executable, "serve.py", "--run", str(run.resolve()), "--port", "0", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise ValueError(f"the server did not start (status {process.wait()}): see its message above")
            yield line.split()[0]
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                status = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        if status:
            raise ValueError(f"the server ended with status {status}: see its message above")


async def ask(client: httpx.AsyncClient, direction: Mapping[str, str], text: str) -> Answer:
    """Send one request; any failure is an answer without a translation."""
    begin = time.perf_counter()
    translation = None
    with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
        response = await client.post("/translate", json={"q": text, **direction})
        translation = response.json()["translatedText"]
    return Answer(text, translation, time.perf_counter() - begin)


async def besiege(
    url: str, direction: Mapping[str, str], texts: Sequence[str], clients: int, seconds: float
) -> tuple[list[Answer], float]:
    """Send requests from `clients` clients for `seconds` seconds; return all answers and the time until the last."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits) as client:
        begin, answers = time.perf_counter(), list[Answer]()

        async def keep_asking(first: int) -> None:
            for i in count(first, clients):  # no two clients send the same text at a time
                if time.perf_counter() - begin >= seconds:
                    break
                answers.append(await ask(client, direction, texts[i % len(texts)]))

        await asyncio.gather(*map(keep_asking, range(clients)))
        return answers, time.perf_counter() - begin


def checked(
    answers: Sequence[Answer], elapsed: float, clients: int, offline: Mapping[str, str], alone: Translator
) -> Measurement:
    """Compare every answer with the offline translation of the same text.

    Matrix products of different batches are not bit-identical, so that two hypotheses with nearly equal scores may
    swap places. Only if an answer differs, the text is translated again, alone: with the rounding of a batch of one.
    """
    translated = [answer for answer in answers if answer.translation is not None]
    if not translated:
        raise ValueError(f"none of {len(answers)} requests was answered: see the server's messages above")
    others = set(offline.values())
    wrong = [answer for answer in translated if answer.translation != offline[answer.text]]
    singly = {text: alone.translate([text])[0].text for text in dict.fromkeys(answer.text for answer in wrong)}
    faults = Counter(
        "ties" if answer.translation == singly[answer.text] else "mixed_up" if answer.translation in others else "other"
        for answer in wrong
    )
    waits = sorted(1000 * answer.seconds for answer in translated)
    return Measurement(
        clients,
        answers=len(translated),
        errors=len(answers) - len(translated),
        mixed_up=faults["mixed_up"],
        differing=faults["other"],
        ties=faults["ties"],
        sentences_per_s=len(translated) / elapsed,
        p50_ms=statistics.median(waits),
        p99_ms=waits[min(len(waits) - 1, int(0.99 * len(waits)))],
    )


def measure(
    run: Run, texts: Sequence[str], clients: Sequence[int], seconds: float, precision: str
) -> list[Measurement]:
    """Measure the same server with each number of clients."""
    translator = build_translator([run], precision="fp32" if precision == "fp32" else "bf16")
    offline = dict(zip(texts, (translation.text for translation in translator.translate(texts)), strict=True))
    direction = {"source": run.config.data.src_lang, "target": run.config.data.tgt_lang}
    measurements = []
    with served(run.folder, "--precision", precision, "--queue-texts", str(max(512, *clients))) as url:
        asyncio.run(besiege(url, direction, texts, max(clients), min(2, seconds)))  # warm-up
        for n in clients:
            print(f"{n} clients for {seconds:g} seconds", flush=True)
            answers, elapsed = asyncio.run(besiege(url, direction, texts, n, seconds))
            measurements.append(checked(answers, elapsed, n, offline, translator))
    return measurements


def figures(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Return the figures of one client and of many."""
    single, many = measurements
    speeds, faults = ("sentences_per_s", "p50_ms", "p99_ms"), ("errors", "mixed_up", "differing", "ties")
    together = {"together_x": many.sentences_per_s / single.sentences_per_s}
    together |= {name: getattr(many, name) for name in speeds}
    together |= {f"one_{name}": getattr(single, name) for name in speeds}
    return together | {name: float(getattr(single, name) + getattr(many, name)) for name in faults}


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = benchmark_parser(
        "serve",
        "Query a server with one client and with many, and compare all answers with offline translations.",
        """  python -m bench.serve                                      the newest run, 32 clients, a minute
  python -m bench.serve --run pickles/RUN --json serve.json
  python -m bench.serve --precision bf16                     faster on some machines; ties are counted
  python -m bench.serve --sentences 64 --seconds 5           a quick look""",
        clients=(32, "clients at once"),
        seconds=(60.0, "duration with one client, and with all"),
        sentences=(500, "distinct sentences of the test set"),
    )
    parser.add_argument("--run", type=Path, help="folder or name of a run (default: the one trained last)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="default: fp32")
    return parser


def main() -> None:
    """Measure, and write the results."""
    arguments = build_parser().parse_args()
    require_options_at_least(arguments, clients=1, seconds=0, sentences=1)
    run = load_run(find_run(arguments.run), torch.device("cpu"))
    corpus = prepare_to_score(run.config.data)
    texts = list(dict.fromkeys(read_parallel(corpus.test).src))[: arguments.sentences]
    if len(texts) < arguments.clients:
        raise ValueError(f"{len(texts)} sentences are too few for --clients {arguments.clients}: each needs its own")
    measurements = measure(run, texts, [1, arguments.clients], arguments.seconds, arguments.precision)
    record = {
        "name": run.folder.name,
        "corpus": corpus.name,
        "beam_size": run.config.search.beam_size,
        "sentences": len(texts),
        "seconds": arguments.seconds,
        "precision": arguments.precision,
        "threads": torch.get_num_threads(),
        "measurements": [measurement._asdict() for measurement in measurements],
    }
    publish(figures(measurements), record, arguments.json)


if __name__ == "__main__":
    run_command("bench.serve", main)
