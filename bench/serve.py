"""Serving many clients at once: `python -m bench.serve` starts a server, sends requests, and checks every answer.

The throughput of many clients is compared with that of a single one, with the same server, sentences and search. Each
client sends its next request when it has its answer. Then a server is to endure: many requests of random lengths, after
which its memory must be what it was; clients who ask for all that takes long, beside honest ones; and SIGTERM at random
moments, after which it must end in time with every request answered. What it misses of that is told, with status 2.
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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import httpx
import torch

from bench.measure import benchmark_parser, publish
from config.search import Limits
from const.path import PICKLES, ROOT
from serve import default_runs, load_served
from utils.command import Parser, require_options_at_least, run_command
from utils.config import TranslationConfig
from utils.dataset.corpus import prepare_to_score
from utils.dataset.text import read_parallel
from utils.run import CONFIG, find_run
from utils.serve.service import Options, Service

PATIENCE = 70.0  # seconds to wait for an answer, and for the server to end, which it must within 60
HONEST, SHORT = 4, 50  # clients beside hostile ones, and most characters of their texts
SHORTEST, LONGEST = 5, 1500  # characters of a request of random length
SETTLED = 2000  # requests after which a server has all the memory that it needs
SAMPLES = 200  # of its memory, of which the median counts: what a batch works with comes and goes
BOUNDS = {  # what each figure may be at most
    "growth": (0.1, f"memory after the last request, beyond that after {SETTLED:,}"),
    "random_lost": (0, "requests of random lengths without a translation"),
    "honest_p99_ms": (2000, "99 of 100 honest clients with short texts beside hostile ones wait for less"),
    "honest_errors": (0, "honest requests without a translation"),
    "honest_mixed_up": (0, "honest requests with the translation of another text"),
    "ended_s": (60, "seconds from SIGTERM to the end"),
    "unanswered": (0, "requests before SIGTERM without an answer"),
    "errors": (0, "requests of one client and of many without a translation"),
    "mixed_up": (0, "those with the translation of another text"),
}


class Question(NamedTuple):
    """What a client asks."""

    q: str
    source: str
    target: str


class Answer(NamedTuple):
    """An answer to a client."""

    question: Question
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
def served(folders: Sequence[Path], *options: str) -> Iterator[Served]:
    """Yield a server of some runs, which is stopped at the end of the block."""
    runs = [word for folder in folders for word in ("--run", str(folder.resolve()))]
    command = [sys.executable, "serve.py", *runs, "--port", "0", *options]
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


def offline(service: Service, questions: Sequence[Question]) -> dict[Question, str]:
    """Return the translations of the runs that a server of this service chooses."""
    of_runs, found = defaultdict[str, list[Question]](list), dict[Question, str]()
    for question in questions:
        of_runs[service.choose(*question)[0].name].append(question)
    for run in service.runs:
        asked = of_runs[run.name]
        lines = run.translate([question.q for question in asked], Options(), lambda: None)
        found |= {question: line.translation.text for question, line in zip(asked, lines, strict=True)}
    return found


async def ask(client: httpx.AsyncClient, question: Question) -> Answer:
    """Send one request; any failure is an answer without a translation."""
    begin = time.perf_counter()
    translation = None
    with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
        response = await client.post("/translate", json=question._asdict())
        translation = response.json()["translatedText"]
    return Answer(question, translation, time.perf_counter() - begin)


async def besiege(url: str, questions: Sequence[Question], clients: int, seconds: float) -> tuple[list[Answer], float]:
    """Send requests from `clients` clients for `seconds` seconds; return all answers and the time until the last."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits) as client:
        begin, answers = time.perf_counter(), list[Answer]()

        async def keep_asking(first: int) -> None:
            for i in count(first, clients):  # no two clients send the same text at a time
                if time.perf_counter() - begin >= seconds:
                    break
                answers.append(await ask(client, questions[i % len(questions)]))

        await asyncio.gather(*map(keep_asking, range(clients)))
        return answers, time.perf_counter() - begin


def checked(
    answers: Sequence[Answer],
    elapsed: float,
    clients: int,
    expected: Mapping[Question, str],
    alone: Callable[[Question], str],
) -> Measurement:
    """Compare every answer with the offline translation of the same text.

    Matrix products of different batches are not bit-identical, so that two hypotheses with nearly equal scores may
    swap places. Only if an answer differs, the text is translated again, alone: with the rounding of a batch of one.
    """
    translated = [answer for answer in answers if answer.translation is not None]
    if not translated:
        raise ValueError(f"none of {len(answers)} requests was answered: see the server's messages above")
    others = set(expected.values())
    wrong = [answer for answer in translated if answer.translation != expected[answer.question]]
    singly = {question: alone(question) for question in dict.fromkeys(answer.question for answer in wrong)}
    faults = Counter(
        "ties" if said == singly[question] else "mixed_up" if said in others else "other" for question, said, _ in wrong
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


class Bench(NamedTuple):
    """What is measured: a server of these runs, by questions with translations that were found without it."""

    folders: Sequence[Path]
    options: Sequence[str]
    expected: Mapping[Question, str]
    alone: Callable[[Question], str]  # translates one by itself

    @property
    def questions(self) -> list[Question]:
        """All questions."""
        return [*self.expected]

    def served(self) -> AbstractContextManager[Served]:
        """Return a new server."""
        return served(self.folders, *self.options)

    def measure(self, clients: Sequence[int], seconds: float) -> list[Measurement]:
        """Measure the same server with each number of clients."""
        measurements = []
        with self.served() as (url, _):
            asyncio.run(besiege(url, self.questions, max(clients), min(2, seconds)))  # warm-up
            for n in clients:
                print(f"{n} clients for {seconds:g} seconds", flush=True)
                answers, elapsed = asyncio.run(besiege(url, self.questions, n, seconds))
                measurements.append(checked(answers, elapsed, n, self.expected, self.alone))
        return measurements

    def endure(
        self, requests: int, clients: int, seconds: float, signals: int
    ) -> tuple[dict[str, float], dict[str, Counter[str]]]:
        """Return the figures of a server that is asked for much, and what hostile clients were answered."""
        found, statuses = dict[str, float](), dict[str, Counter[str]]()
        with self.served() as server:
            if requests:
                found |= asyncio.run(of_random_lengths(server, self.questions, requests, clients))
                found["growth"] = found["last_mb"] / found["settled_mb"] - 1
            if seconds:
                print(f"{HONEST} honest clients beside hostile ones for {seconds:g} seconds", flush=True)
                answers, elapsed, statuses = asyncio.run(under_attack(server.url, self.questions, seconds))
                honest = checked(answers, elapsed, HONEST, self.expected, self.alone)
                told = ("answers", "p50_ms", "p99_ms", "errors", "mixed_up", "differing")
                found |= {f"honest_{name}": getattr(honest, name) for name in told}
        draw, ended = random.Random(3), list[float]()
        for i in range(signals):
            with self.served() as server:
                unanswered, second = asyncio.run(terminated(server, self.questions, draw.uniform(1, 6)))
            ended.append(second)
            found["unanswered"] = found.get("unanswered", 0) + unanswered
            print(f"SIGTERM {i + 1} of {signals}: ended after {second:.1f} s, {unanswered} not answered", flush=True)
        return found | ({"ended_s": max(ended)} if ended else {}), statuses


def hostile_requests(questions: Sequence[Question]) -> dict[str, bytes | dict[str, object]]:
    """Return bodies of requests that take long, or would, by what they are called."""
    _, source, target = questions[0]
    direction = {"source": source, "target": target}
    letters = "".join(question.q for question in questions if question.source == source)
    letters *= 1 + 5000 // max(1, len(letters))
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
    url: str, questions: Sequence[Question], seconds: float
) -> tuple[list[Answer], float, dict[str, Counter[str]]]:
    """Besiege with honest clients beside hostile ones; also return what the hostile ones were answered."""
    until = time.perf_counter() + seconds
    hostile = hostile_requests(questions)
    statuses = {name: Counter[str]() for name in hostile}
    attacks = [asyncio.ensure_future(keep_attacking(url, hostile[name], until, statuses[name])) for name in hostile]
    answers, elapsed = await besiege(
        url, [question for question in questions if len(question.q) <= SHORT], HONEST, seconds
    )
    await asyncio.gather(*attacks)
    return answers, elapsed, statuses


async def of_random_lengths(server: Served, questions: Sequence[Question], n: int, clients: int) -> dict[str, float]:
    """Send n requests of a word to a page, most of them short; return how many were lost, and the memory."""
    texts = defaultdict[tuple[str, str], str](str)
    for q, source, target in questions:
        texts[source, target] += f"{q} "
    directions = [*texts]
    draw, numbers, lost = random.Random(2), iter(range(1, n + 1)), 0
    memory = list[float]()  # after each request
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:

        async def keep_asking() -> None:
            nonlocal lost
            for number in numbers:
                direction = draw.choice(directions)
                begin = draw.randrange(len(texts[direction]))
                length = min(LONGEST, int(SHORTEST * draw.paretovariate(1.5)))
                question = Question(texts[direction][begin : begin + length], *direction)
                lost += (await ask(client, question)).translation is None
                memory.append(server.resident_mb)
                if number % 1000 == 0:
                    print(f"{number:,} of {n:,} requests: {memory[-1]:,.0f} MB", flush=True)

        await asyncio.gather(*(keep_asking() for _ in range(clients)))
    settled, last = (statistics.median(memory[:end][-SAMPLES:]) for end in (SETTLED, n))
    return {"settled_mb": settled, "last_mb": last, "random_lost": float(lost)}


async def terminated(server: Served, questions: Sequence[Question], after: float) -> tuple[int, float]:
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
        bodies = [body for body in hostile_requests(questions).values() if isinstance(body, dict)]
        bodies += [{**question._asdict()} for question in questions[: 2 * HONEST]]
        asking = [asyncio.ensure_future(keep_asking(body)) for body in bodies]
        await asyncio.sleep(signalled - time.perf_counter())
        server.process.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(server.process.wait, PATIENCE)
        ended = time.perf_counter() - signalled
        await asyncio.gather(*asking)
    return unanswered + bool(status), ended


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
        """  python -m bench.serve                                      half an hour at most
  python -m bench.serve --run kftt_ja_en --run kftt_en_ja --json serve.json
  python -m bench.serve --precision fp32                     in others, more translations are ties
  python -m bench.serve --sentences 64 --seconds 5 --requests 200 --attack 20 --signals 1
                                                             a quick look""",
        clients=(32, "clients at once"),
        seconds=(60.0, "duration with one client, and with all"),
        sentences=(500, "distinct sentences of the first run's test set, in each language that is read"),
        requests=(50_000, "requests of random lengths"),
        attack=(120.0, "seconds with hostile clients"),
        signals=(5, "times that SIGTERM comes at a random moment"),
    )
    text = "folder or name of a run to serve; repeat for several (default: as serve.py)"
    parser.add_argument("--run", type=Path, action="append", help=text)
    precisions = ["auto", "fp32", "bf16", "int8"]
    parser.add_argument("--precision", choices=precisions, default="auto", help="default: auto, as serve.py")
    return parser


def main() -> None:
    """Measure, print and write the results, and tell which bounds are missed."""
    arguments = build_parser().parse_args()
    require_options_at_least(arguments, clients=1, seconds=0, sentences=1, requests=0, attack=0, signals=0)
    folders = [find_run(run) for run in arguments.run or []] or default_runs(PICKLES)
    service = Service([load_served(folder, "cpu", arguments.precision) for folder in folders], Limits())
    corpus = prepare_to_score(TranslationConfig.load(folders[0] / CONFIG).data)
    pairs, first = read_parallel(corpus.test), service.runs[0]
    texts = {(first.src_lang, first.tgt_lang): pairs.src}
    if first.src_lang in service.targets(first.tgt_lang):
        texts[first.tgt_lang, first.src_lang] = pairs.tgt
    questions = [
        Question(text, *direction)
        for direction, of_it in texts.items()
        for text in [*dict.fromkeys(of_it)][: arguments.sentences]
    ]
    if len(questions) < arguments.clients:
        few = f"{len(questions)} sentences are too few for --clients {arguments.clients}"
        raise ValueError(f"{few}: each needs its own")
    if arguments.attack and all(len(question.q) > SHORT for question in questions):
        raise ValueError(f"no sentence has at most {SHORT} characters, for honest clients to ask: give --attack 0")
    random.Random(1).shuffle(questions)
    print(f"translating {len(questions)} sentences without a server", flush=True)
    options = ("--precision", arguments.precision, "--queue-texts", str(max(512, arguments.clients)))
    bench = Bench(
        folders, options, offline(service, questions), lambda question: offline(service, [question])[question]
    )
    measurements = bench.measure([1, arguments.clients], arguments.seconds)
    endured, statuses = bench.endure(arguments.requests, arguments.clients, arguments.attack, arguments.signals)
    for name, of_it in statuses.items():
        print(f"{name}: {', '.join(f'{n} x {status}' for status, n in of_it.most_common())}")
    found = figures(measurements) | endured
    record = {
        "names": [run.name for run in service.runs],
        "corpus": corpus.name,
        "beam_sizes": [run.beam for run in service.runs],
        "sentences": len(questions),
        "seconds": arguments.seconds,
        "precision": arguments.precision,
        "threads": torch.get_num_threads(),
        "hostile": statuses,
        "measurements": [measurement._asdict() for measurement in measurements],
    }
    publish(found, record, arguments.json)
    print()
    for name, (most, meaning) in BOUNDS.items():
        if name in found:
            print(f"{found[name]:10,.2f}  of at most {most:5,}: {meaning}")
    if missed := [f"{name}={found[name]:.2f}" for name, (most, _) in BOUNDS.items() if found.get(name, 0) > most]:
        raise ValueError(f"{', '.join(missed)}: more than the bounds above")


if __name__ == "__main__":
    run_command("bench.serve", main)
