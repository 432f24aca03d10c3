"""Serve trained runs: `python serve.py` offers a web page and an API compatible with LibreTranslate."""

import os
import shlex
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from config.data import primary_language
from config.reader import texts_of
from config.search import Limits
from config.training import Device, InferencePrecision
from const.path import EXPORTED, PICKLES
from utils.command import Parser, needing_group, option_of, run_command
from utils.run import SHIPPED, find_run, source_log_prob, translators
from utils.terminal.option import add_model_options, changed_by

if TYPE_CHECKING:
    from utils.serve.service import ServedRun

# How many shapes oneDNN keeps kernels for. Requests of all lengths have thousands: with its own limits a server of a
# small model grows to two gigabytes, at most 5 % faster than one that stays at seven hundred megabytes.
_KEPT_KERNELS = dict.fromkeys(("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), "64")


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = Parser(
        prog="serve.py",
        usage="python serve.py [--run RUN ...] [--host HOST] [--port PORT] [options]",
        description="Serve trained runs: a page that translates as you type, and a LibreTranslate-compatible API.",
        epilog="""examples:
  python serve.py                                    the newest run, the newest back, and the project's own both ways
  python serve.py --run kftt_ja_en-20260101-120000 --run kftt_en_ja-20260101-180000
  python serve.py --port 0 --precision fp32          any free port
  python serve.py --host 0.0.0.0                     reachable from other machines
  curl http://127.0.0.1:8000/translate -d q=駅はどこですか。 -d source=ja -d target=en

GET /docs describes the API, GET /metrics is for Prometheus. After the first Ctrl-C or SIGTERM, the server finishes
pending requests; a second one ends it at once. Exit status: 0 on success, 2 on a usage or input error, 130 after
Ctrl-C.""",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address (default: 127.0.0.1, this machine only)")
    text = "let web pages of this origin use the API, such as https://example.com; * for any (default: none)"
    parser.add_argument("--cors", metavar="ORIGIN", help=text)
    text = "key that requests must have in their field api_key (default: $MIYAKO_API_KEY, or none is needed)"
    parser.add_argument("--api-key", metavar="KEY", default=os.environ.get("MIYAKO_API_KEY"), help=text)
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0: any free port (default: 8000)")
    which = (
        "run to serve; repeat to serve several, of which the one that reads a text best translates it (default: the "
        "newest, the newest that translates back, and those of the project both ways)"
    )
    add_model_options(parser, which)
    limits = parser.add_argument_group("limits")
    for field in fields(Limits):
        meaning = f"{texts_of(Limits)[field.name]} (default: {field.default:g})"
        limits.add_argument(option_of(field.name), type=field.type, metavar="N", default=field.default, help=meaning)
    return parser


def main() -> None:
    """Read the arguments, load the runs and serve until told to stop."""
    arguments = build_parser().parse_args()
    limits = changed_by(Limits(), {field.name: field.name for field in fields(Limits)}, arguments)
    if arguments.cors is not None and not is_origin(arguments.cors):
        shown = shlex.quote(arguments.cors)
        raise ValueError(f"--cors {shown}: give the origin of web pages, such as https://example.com, or '*' for any")
    if arguments.api_key == "":
        raise ValueError("--api-key '': give the key that requests must have, or leave the option out")
    folders = [find_run(Path(name)) for name in arguments.run or []] or default_runs(PICKLES)
    for name, capacity in _KEPT_KERNELS.items():
        os.environ.setdefault(name, capacity)  # it is read when torch is imported
    # only now: torch takes seconds to import, which neither --help nor a mistake should wait for
    with needing_group("serve"):
        from utils.serve.api import create_app
        from utils.serve.server import Server, address, bind

    with bind(arguments.host, arguments.port) as bound:  # before loading the models, which takes longer
        served = [load_served(folder, arguments.device, arguments.precision) for folder in folders]
        n_at_once = 1
        if "torch" in sys.modules:
            from utils.device import pick_device, share_threads

            n_at_once = share_threads() if pick_device(arguments.device).type == "cpu" else 1
        names = ", ".join(f"{run.name} ({run.direction})" for run in served)
        ready = f"{address(bound)} serves {names}; Ctrl-C quits"
        app = create_app(served, limits, arguments.cors, arguments.api_key, n_at_once)
        Server(app, lambda: print(ready, flush=True)).serve_until_told(bound)


def load_served(folder: Path, device: Device, precision: InferencePrecision) -> "ServedRun":
    """Load a run to serve it, or what was exported from one for CTranslate2, which needs no torch."""
    from utils.serve.service import ServedRun, translate_lines

    texts: list[str] = []
    if (folder / EXPORTED).is_file():
        from utils.export.engine import TranslatorSettings, load_exported

        settings = TranslatorSettings.load(folder)
        languages, search = (settings.src_lang, settings.tgt_lang), settings.search
        inspector = load_exported(folder, device, precision=precision, plain=True)
    else:
        from utils.device import pick_device
        from utils.load import build_translator, examples, load_run
        from utils.search.inspection import Inspector

        run = load_run(folder, pick_device(device), plain=True)
        languages, search, texts = run.config.data.languages, run.config.search, examples(folder)
        inspector = Inspector(build_translator([run], precision=precision), [run.model])
    src_lang, tgt_lang = map(primary_language, languages)  # one code for each language
    return ServedRun(
        name=folder.resolve().name,
        src_lang=src_lang,
        tgt_lang=tgt_lang,
        beam=search.beam_size,
        translate=partial(translate_lines, inspector),
        log_prob=source_log_prob(folder),
        examples=texts,
        tags=inspector.translator.tokenizers.text_tags,
    )


def is_origin(text: str) -> bool:
    """Return whether a browser may send this as the origin of a page: scheme and host, and nothing behind them."""
    try:
        url = urlsplit(text)
        return text == "*" or (
            url.scheme in ("http", "https") and f"{url.scheme}://{url.netloc}" == text != f"{url.scheme}://"
        )
    except ValueError:
        return False


def default_runs(root: Path) -> list[Path]:
    """Return the newest translator, the newest that translates the other way, and the project's own both ways."""
    newest = find_run(None, root=root)
    runs = {folder: (primary_language(src), primary_language(tgt)) for folder, src, tgt in translators(root)}
    there = runs.get(newest, ())
    back = [folder for folder, languages in runs.items() if languages == there[::-1]]
    shipped = [folder for folder, languages in runs.items() if folder.name in SHIPPED and {*languages} == {*there}]
    return list(dict.fromkeys([newest, *back[:1], *shipped]))


if __name__ == "__main__":
    run_command("serve.py", main)
