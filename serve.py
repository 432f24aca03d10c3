"""Serve trained runs: `python serve.py` offers a web page and an API compatible with LibreTranslate."""

import argparse
from dataclasses import fields
from itertools import islice
from pathlib import Path

import torch

from const.corpora import VERSION
from const.path import PICKLES
from utils.command import Parser, needing_group, run_command
from utils.config import TranslationConfig, config_type_of
from utils.device import Device, Precision, pick_device
from utils.run import CONFIG, WEIGHTS, build_translator, find_run, load_run

with needing_group("serve.py", "serve"):
    from utils.serve.api import create_app
    from utils.serve.service import Interpreter, Limits, Route, Server, address, bind


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = Parser(
        prog="serve.py",
        version=VERSION,
        usage="python serve.py [--run RUN ...] [--host HOST] [--port PORT] [options]",
        description="Serve trained runs: a page that translates as you type, and a LibreTranslate-compatible API.",
        epilog="""examples:
  python serve.py                                    the newest run, and the newest one that translates back
  python serve.py --run kftt_ja_en-20260101-120000 --run kftt_en_ja-20260101-180000
  python serve.py --port 0 --precision fp32          any free port
  python serve.py --host 0.0.0.0                     reachable from other machines, without a password
  curl http://127.0.0.1:8000/translate -d q=駅はどこですか。 -d source=ja -d target=en

GET /docs describes the API, GET /metrics is for Prometheus. After the first Ctrl-C or SIGTERM, the server finishes
pending requests; a second one ends it at once. Exit status: 0 on success, 2 on a usage or input error, 130 after
Ctrl-C.""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--host", type=str, default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0: any free port (default: 8000)")
    model = parser.add_argument_group("model")
    model.add_argument(
        "--run",
        type=str,
        action="append",
        help="run to serve; repeat to serve several (default: the newest, and the newest that translates back)",
    )
    model.add_argument("--device", type=Device, default="auto", help="cpu, cuda, or auto: cuda if available")
    model.add_argument(
        "--precision",
        choices=["auto", "fp32", "bf16", "fp16"],
        help="precision of matrix products; auto: bf16 where it is fast (default: the run's own)",
    )
    limits, own = parser.add_argument_group("limits"), Limits()
    for name, kind, unit, meaning in (
        ("max_chars", int, "N", "most characters in a request"),
        ("max_texts", int, "N", "most texts in a request; each line counts as one"),
        ("batch_texts", int, "N", "most texts translated together; 1: one by one"),
        ("collect_ms", float, "MS", "how long a text may wait for others to share its batch"),
        ("queue_texts", int, "N", "most texts waiting for a run"),
        ("timeout_s", float, "S", "timeout of a request"),
    ):
        default = getattr(own, name)
        limits.add_argument(
            f"--{name}", type=kind, metavar=unit, default=default, help=f"{meaning} (default: {default:g})"
        )
    return parser


def main() -> None:
    """Read the arguments, load the runs and serve until told to stop."""
    arguments = build_parser().parse_args()
    limits = Limits(**{field.name: arguments[field.name] for field in fields(Limits)})
    folders = [find_run(Path(name)) for name in arguments.run or []] or default_runs(PICKLES)
    with bind(arguments.host, arguments.port) as bound:  # before loading the models, which takes longer
        device = pick_device(arguments.device)
        routes = [load_route(folder, device, arguments.precision) for folder in folders]
        names = ", ".join(f"{route.name} ({route.direction})" for route in routes)

        def announce() -> None:
            print(f"{address(bound)} serves {names}; Ctrl-C quits", flush=True)

        Server(create_app(routes, limits), announce).serve_until_told(bound)


def default_runs(root: Path) -> list[Path]:
    """Return the newest translator and, if there is one, the newest that translates the other way."""
    newest = find_run(None, root=root)
    src, tgt = direction(newest) or ("", "")
    weights = sorted(root.glob(f"*/{WEIGHTS}"), key=lambda file: -file.stat().st_mtime)
    back = (file.parent for file in weights if direction(file.parent) == (tgt, src))
    return [newest, *islice(back, 1)]


def direction(folder: Path) -> tuple[str, ...]:
    """Return source and target language of a run; nothing if it is not a translator or cannot be read."""
    try:
        if config_type_of(folder / CONFIG) is not TranslationConfig:
            return ()
        data = TranslationConfig.load(folder / CONFIG).data
    except ValueError:  # from another version, perhaps; naming this run explicitly shows the error
        return ()
    return data.src_lang, data.tgt_lang


def load_route(folder: Path, device: torch.device, precision: Precision | None) -> Route:
    """Load a run, ready to serve."""
    run = load_run(folder, device)
    config = run.config
    translator = build_translator([run], precision=precision or run.precision)
    interpreter = Interpreter(translator, run.model)
    name = folder.resolve().name
    return Route(name, config.data.src_lang, config.data.tgt_lang, config.search.beam_size, interpreter.translate)


if __name__ == "__main__":
    run_command("serve.py", main)
