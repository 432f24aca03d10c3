"""Translating in a browser: `python -m bench.web` exports runs, opens the page in Chromium and lets it translate."""

import re
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Playwright, sync_playwright

from bench.measure import benchmark_parser, publish
from config.data import primary_language
from utils.command import Parser, aligned, require_options_at_least, run_command
from utils.config import TranslationConfig
from utils.run import SHIPPED, find_run, read_config

# of twenty words
_SENTENCE = {
    "ja": "この寺は室町時代の初めに京都の北の山の中に建てられ、今では多くの人が庭を見に訪れる。",
    "en": "This temple was built in the mountains north of Kyoto long ago, and many people visit its old garden today.",
}
_KEEP = (
    "window.workers = []; window.Worker = class extends Worker { constructor(of) { super(of); workers.push(this); } };"
)
_ASK = """body => new Promise(resolve => {
    const [worker] = workers;
    worker.addEventListener("message", ({ data }) => data.id === "bench" && resolve(data.answer));
    worker.postMessage({ id: "bench", path: "api/translate", body });
})"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


@contextmanager
def static(folder: Path) -> Iterator[str]:
    """Yield the address of a server of files, as anybody has one."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


NO_CHROMIUM = "no Chromium on the path: apt-get install chromium-headless-shell (or chromium); see docs/development.md"


def chromium() -> str | None:
    """Return the browser of the system; Chromium without windows takes a third of the time."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


def launched(playwright: Playwright) -> Browser:
    """Start it."""
    if (program := chromium()) is None:
        raise ValueError(NO_CHROMIUM)
    return playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])


def measure(browser: Browser, address: str, run: str, text: str, beam: int, rounds: int) -> dict[str, float]:
    """Return seconds until the page is ready, of the first translation and of later ones, and MB of its process."""
    page = browser.new_page()
    page.set_default_timeout(600_000)
    page.add_init_script(_KEEP)
    question = {"text": text, "run": run, "source": "auto", "target": "auto", "beam": beam, "n_best": 1}
    begin = time.perf_counter()
    page.goto(f"{address}index.html")
    while not page.evaluate("workers.length"):
        page.wait_for_timeout(10)
    first, *warm = (page.evaluate(_ASK, question)["seconds"] for _ in range(1 + rounds))
    loading = time.perf_counter() - begin - first - sum(warm)
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    status = [Path("/proc", str(process["id"]), "status") for process in processes if process["type"] == "renderer"]
    peaks = [int(re.findall(r"VmHWM:\s+(\d+) kB", file.read_text())[0]) for file in status if file.exists()]
    page.close()
    return {
        "load_s": loading,
        "first_s": first,
        "warm_s": statistics.median(warm),
        "peak_mb": max(peaks, default=0) / 1e3,
    }


def build_parser() -> Parser:
    """Build the parser with all options."""
    examples = "  python -m bench.web\n  python -m bench.web pickles/RUN --beam 8 --runtime package"
    numbers = {"beam": (4, "beam size"), "rounds": (5, "translations after the first")}
    parser = benchmark_parser("web", __doc__.partition(":")[0] + " in Chromium.", examples, **numbers)
    parser.add_argument("runs", nargs="*", default=[*SHIPPED], metavar="RUN", help="default: those of the project")
    parser.add_argument("--runtime", type=Path, metavar="FOLDER", help="as for export.py --to web")
    return parser


def main() -> None:
    """Measure, and print."""
    from utils.export.web import find_runtime, write_web

    arguments = build_parser().parse_args()
    require_options_at_least(arguments, beam=1, rounds=1)
    runs, runtime = [find_run(Path(run)) for run in arguments.runs], find_runtime(arguments.runtime)
    record: dict[str, Any] = {"beam": arguments.beam, "runs": {}}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        sizes = write_web({run: [] for run in runs}, Path(folder), runtime)
        with static(Path(folder)) as address:
            for run in runs:
                # a browser of its own, whose processes have held no other run
                with launched(playwright) as browser:
                    text = _SENTENCE[primary_language(read_config(run, TranslationConfig).data.src_lang)]
                    measured = measure(browser, address, run.resolve().name, text, arguments.beam, arguments.rounds)
                own = sum(size for file, size in sizes.items() if file.startswith(run.resolve().name)) / 1e6
                record["runs"][run.resolve().name] = {"size_mb": own, **measured}
    columns = ["run", "MB", "load s", "first s", "warm s", "peak MB"]
    rows = [[name, *(f"{value:.2f}" for value in figures.values())] for name, figures in record["runs"].items()]
    print("\n".join(aligned([columns, *rows], "lrrrrr")))
    publish(
        {f"{name}.{key}": value for name, of in record["runs"].items() for key, value in of.items()},
        record,
        arguments.json,
    )


if __name__ == "__main__":
    run_command("bench.web", main)
