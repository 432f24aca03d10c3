"""Serving many clients at once: `python -m bench.serve` starts a server, sends requests, and checks every answer.

The throughput of many clients is compared with that of a single one, with the same server, sentences and search. Each
client sends its next request when it has its answer. Then the server is to endure: many requests of random lengths,
after which its memory must be what it was; clients who ask for all that takes long, beside honest ones; and SIGTERM at
random moments, after which it must end in time with every request answered.
"""

import asyncio
import contextlib
import random
import re
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

PATIENCE = 70.0  # seconds to wait for an answer, and for the server to end, which it must within 60
HONEST = 4  # clients with short texts beside hostile ones
LONGEST = 1500  # characters of a request of random length
SETTLED = 2000  # requests after which a server has all the memory that it needs


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


class Served(NamedTuple):
    """A server in a separate process."""

    url: str
    process: subprocess.Popen[str]

    @property
    def resident_mb(self) -> float:
        """Its memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024


@contextmanager
def served(run: Path, *options: str) -> Iterator[Served]:
    """Yield a server, which is stopped at the end of the block."""
    command = [sys.executable, "serve.py", "--run", str(run.resolve()), "--port", "0", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise ValueError(f"the server did not start (status {process.wait()}): see its message above")
            yield Served(line.split()[0], process)
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
    with served(run.folder, "--precision", precision, "--queue-texts", str(max(512, *clients))) as (url, _):
        asyncio.run(besiege(url, direction, texts, max(clients), min(2, seconds)))  # warm-up
        for n in clients:
            print(f"{n} clients for {seconds:g} seconds", flush=True)
            answers, elapsed = asyncio.run(besiege(url, direction, texts, n, seconds))
            measurements.append(checked(answers, elapsed, n, offline, translator))
    return measurements


def hostile_requests(direction: Mapping[str, str], texts: Sequence[str]) -> dict[str, bytes | dict[str, object]]:
    """Return bodies of requests that take long, or would, by what they are called."""
    letters = "".join(texts) * (1 + 5000 // max(1, sum(map(len, texts))))
    shuffled = "".join(random.Random(1).sample(letters, 4999))
    return {
        "tags without an end": {"q": "<p " * 6000, "format": "html", **direction},
        "60 kB of tags without an end": {"q": "<p " * 20_000, "format": "html", **direction},
        "a tag around each character": {
            "q": "".join(f"<b>{c}</b>" for c in letters[:2000]),
            "format": "html",
            **direction,
        },
        "a line of 4,999 characters": {"q": shuffled, **direction},
        "another line of 4,999 characters": {"q": shuffled[::-1], **direction},
        "100 lines of 48 characters": {"q": [shuffled[i * 48 : i * 48 + 48] for i in range(100)], **direction},
        "no JSON": b"[" * 70_000,
    }


async def keep_attacking(url: str, body: bytes | dict[str, object], until: float, statuses: Counter[str]) -> None:
    """Send the same request again and again, and count the answers; every fourth time, hang up after half a second."""
    async with httpx.AsyncClient(base_url=url) as client:
        for i in count():
            if time.perf_counter() >= until:
                return
            sent: dict[str, object] = {"json": body} if isinstance(body, dict) else {"content": body}
            try:
                answer = await client.post("/translate", timeout=0.5 if i % 4 == 3 else PATIENCE, **sent)  # type: ignore[arg-type]
                statuses[str(answer.status_code)] += 1
            except httpx.HTTPError as error:
                statuses[type(error).__name__] += 1
            await asyncio.sleep(0.05)


async def under_attack(
    url: str, direction: Mapping[str, str], texts: Sequence[str], seconds: float
) -> tuple[list[Answer], float, dict[str, Counter[str]]]:
    """Besiege with honest clients beside hostile ones; also return what the hostile ones were answered."""
    until = time.perf_counter() + seconds
    hostile = hostile_requests(direction, texts)
    statuses = {name: Counter[str]() for name in hostile}
    attacks = [asyncio.ensure_future(keep_attacking(url, hostile[name], until, statuses[name])) for name in hostile]
    answers, elapsed = await besiege(url, direction, texts, HONEST, seconds)
    await asyncio.gather(*attacks)
    return answers, elapsed, statuses


async def of_random_lengths(
    server: Served, direction: Mapping[str, str], texts: Sequence[str], n: int, clients: int
) -> dict[str, float]:
    """Send n requests of one to many sentences; return how many were lost, and the memory early and late."""
    draw, numbers, lost = random.Random(2), iter(range(1, n + 1)), 0
    memory = dict.fromkeys(("settled_mb", "last_mb"), 0.0)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:

        async def keep_asking() -> None:
            nonlocal lost
            for number in numbers:
                text = " ".join(draw.sample(texts, min(len(texts), int(draw.paretovariate(1)))))[:LONGEST]
                lost += (await ask(client, direction, text)).translation is None
                if number == min(SETTLED, n):
                    memory["settled_mb"] = server.resident_mb
                if number % 1000 == 0:
                    print(f"{number:,} of {n:,} requests: {server.resident_mb:,.0f} MB", flush=True)

        await asyncio.gather(*(keep_asking() for _ in range(clients)))
    memory["last_mb"] = server.resident_mb
    return {**memory, "random_lost": float(lost)}


async def terminated(
    server: Served, direction: Mapping[str, str], texts: Sequence[str], after: float
) -> tuple[int, float]:
    """Send SIGTERM while all kinds of requests are worked on; return how many were not answered, and when it ended.

    One that begins less than half a second before the signal may not have been accepted yet.
    """
    unanswered = 0
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:

        async def keep_asking(body: object) -> None:
            nonlocal unanswered
            while time.perf_counter() < signalled - 0.5:
                begin = time.perf_counter()
                try:
                    await client.post("/translate", json=body)
                except httpx.HTTPError:
                    unanswered += begin < signalled - 0.5

        begin = time.perf_counter()
        signalled = begin + after
        bodies = [body for body in hostile_requests(direction, texts).values() if isinstance(body, dict)]
        bodies += [{"q": text, **direction} for text in texts[: 2 * HONEST]]
        asking = [asyncio.ensure_future(keep_asking(body)) for body in bodies]
        await asyncio.sleep(signalled - time.perf_counter())
        server.process.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(server.process.wait, PATIENCE)
        ended = time.perf_counter() - signalled
        await asyncio.gather(*asking)
    return unanswered + bool(status), ended


def endure(
    run: Run, texts: Sequence[str], precision: str, requests: int, seconds: float, signals: int
) -> tuple[dict[str, float], dict[str, Counter[str]]]:
    """Return the figures of a server that is asked for much, and what hostile clients were answered."""
    translator = build_translator([run], precision="fp32" if precision == "fp32" else "bf16")
    offline = dict(zip(texts, (translation.text for translation in translator.translate(texts)), strict=True))
    direction = {"source": run.config.data.src_lang, "target": run.config.data.tgt_lang}
    found, statuses = dict[str, float](), dict[str, Counter[str]]()
    with served(run.folder, "--precision", precision) as server:
        if requests:
            found |= asyncio.run(of_random_lengths(server, direction, texts, requests, 2 * HONEST))
            found["growth"] = found["last_mb"] / found["settled_mb"] - 1
        if seconds:
            print(f"{HONEST} honest clients beside hostile ones for {seconds:g} seconds", flush=True)
            answers, elapsed, statuses = asyncio.run(under_attack(server.url, direction, texts, seconds))
            honest = checked(answers, elapsed, HONEST, offline, translator)
            found |= {f"honest_{name}": getattr(honest, name) for name in ("answers", "p50_ms", "p99_ms", "errors")}
            found["honest_wrong"] = honest.mixed_up + honest.differing
    draw, ended = random.Random(3), list[float]()
    for i in range(signals):
        with served(run.folder, "--precision", precision) as server:
            unanswered, second = asyncio.run(terminated(server, direction, texts, draw.uniform(1, 6)))
        ended.append(second)
        found["unanswered"] = found.get("unanswered", 0) + unanswered
        print(f"SIGTERM {i + 1} of {signals}: ended after {second:.1f} s, {unanswered} not answered", flush=True)
    return found | ({"ended_s": max(ended)} if ended else {}), statuses


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
        """  python -m bench.serve                                      32 clients, a minute; then half an hour
  python -m bench.serve --run pickles/RUN --json serve.json
  python -m bench.serve --precision bf16                     faster on some machines; ties are counted
  python -m bench.serve --sentences 64 --seconds 5 --requests 200 --attack 20 --signals 1
                                                             a quick look""",
        clients=(32, "clients at once"),
        seconds=(60.0, "duration with one client, and with all"),
        sentences=(500, "distinct sentences of the test set"),
        requests=(50_000, "requests of random lengths"),
        attack=(120.0, "seconds with hostile clients"),
        signals=(10, "times that SIGTERM comes at a random moment"),
    )
    parser.add_argument("--run", type=Path, help="folder or name of a run (default: the one trained last)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="default: fp32")
    return parser


def main() -> None:
    """Measure, and write the results."""
    arguments = build_parser().parse_args()
    require_options_at_least(arguments, clients=1, seconds=0, sentences=1, requests=0, attack=0, signals=0)
    run = load_run(find_run(arguments.run), torch.device("cpu"))
    corpus = prepare_to_score(run.config.data)
    texts = list(dict.fromkeys(read_parallel(corpus.test).src))[: arguments.sentences]
    if len(texts) < arguments.clients:
        raise ValueError(f"{len(texts)} sentences are too few for --clients {arguments.clients}: each needs its own")
    measurements = measure(run, texts, [1, arguments.clients], arguments.seconds, arguments.precision)
    endured, statuses = endure(run, texts, arguments.precision, arguments.requests, arguments.attack, arguments.signals)
    for name, of_it in statuses.items():
        print(f"{name}: {', '.join(f'{n} x {status}' for status, n in of_it.most_common())}")
    record = {
        "name": run.folder.name,
        "corpus": corpus.name,
        "beam_size": run.config.search.beam_size,
        "sentences": len(texts),
        "seconds": arguments.seconds,
        "precision": arguments.precision,
        "threads": torch.get_num_threads(),
        "hostile": statuses,
        "measurements": [measurement._asdict() for measurement in measurements],
    }
    publish(figures(measurements) | endured, record, arguments.json)


if __name__ == "__main__":
    run_command("bench.serve", main)
