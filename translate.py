"""Translate: `python translate.py "文" ...`, `--input FILE`, lines on standard input, or a prompt."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from utils.command_line import Parser, run_command
from utils.dataset.parallel_text import decoded_lines
from utils.device import Device, pick_device
from utils.file import atomic_file
from utils.run import WEIGHTS, load_run, newest_run
from utils.search.translator import Translation, Translator

LINES_AT_ONCE = 1000  # enough to batch by length, little enough to hold


def build_parser() -> Parser:
    """All options."""
    parser = Parser(
        prog="translate.py",
        usage="python translate.py [TEXT ...] [--run RUN] [--input FILE] [--output FILE] [--beam N]",
        description="Translate texts with a trained run; without texts, each line of a file or of standard input.",
        epilog="""examples:
  python translate.py "京都は日本の古都である。"
  python translate.py "雨が降っています。" "駅はどこですか。" --beam 1
  python translate.py --input notes.ja --output notes.en
  cat notes.ja | python translate.py --run pickles/kftt_ja_en-20260101-120000 > notes.en
  python translate.py                                              a prompt""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("texts", nargs="*", type=str, default=[], help="what to translate")
    parser.add_argument("--run", type=Path, help="folder of a run (default: the one trained last)")
    parser.add_argument("--input", type=Path, help="a text file, UTF-8, to translate line by line")
    parser.add_argument("--output", type=Path, help="where to write (default: standard output)")
    parser.add_argument("--beam", type=int, help="beam width, 1 is greedy (default: the run's)")
    parser.add_argument("--length_penalty", type=float, help="larger prefers longer translations (default: the run's)")
    parser.add_argument("--device", type=Device, default="auto", help="cpu, cuda, or whichever is there")
    return parser


def main() -> None:
    """Read the arguments, load the run, translate."""
    parser = build_parser()
    arguments = parser.parse_args()
    if arguments.texts and arguments.input:
        raise ValueError(f"texts and --input {arguments.input} at once: give one of them")
    if arguments.beam is not None and arguments.beam < 1:
        raise ValueError(f"--beam {arguments.beam}: give 1 (greedy) or more")
    if arguments.input and not arguments.input.is_file():
        raise ValueError(f"no such file: {arguments.input}")
    run = load_run(arguments.run or newest_run(WEIGHTS), pick_device(arguments.device))
    search = run.config.search
    if arguments.beam is not None:
        search = replace(search, beam_size=arguments.beam)
    if arguments.length_penalty is not None:
        search = replace(search, length_penalty=arguments.length_penalty)
    translator = run.translator(search)

    if arguments.texts:
        batches: Iterable[Sequence[str]] = [[" ".join(text.split("\n")) for text in arguments.texts]]
    elif arguments.input:
        with arguments.input.open("rb") as file:
            write(translator, in_batches(decoded_lines(file, str(arguments.input))), arguments.output)
        return
    elif sys.stdin.isatty():
        data = run.config.data
        print(f"{run.folder.name}: {data.src_lang} → {data.tgt_lang}; an empty line or Ctrl-D ends", file=sys.stderr)
        batches = prompted()
    else:
        batches = in_batches(decoded_lines(sys.stdin.buffer, "standard input"))
    write(translator, batches, arguments.output)


def in_batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines in bounded lots."""
    rest = iter(lines)
    while batch := list(islice(rest, LINES_AT_ONCE)):
        yield batch


def prompted() -> Iterator[list[str]]:
    """Lines typed at a prompt, one at a time."""
    with suppress(ImportError):  # Windows has none
        import readline  # noqa: F401 (importing it gives `input` a history)

    while True:
        try:
            line = input("> ")
        except EOFError:
            return
        if not line.strip():
            return
        yield [line]


def write(translator: Translator, batches: Iterable[Sequence[str]], output: Path | None) -> None:
    """Translate lots of lines and write a line for each."""
    n_before = 0
    with atomic_file(output) if output else nullcontext() as draft:
        out = draft.open("w", encoding="utf-8") if draft else sys.stdout
        for batch in batches:
            with tqdm(total=len(batch), unit="line", disable=None, leave=False) as bar:
                translations = translator.translate(batch, bar.update)
            for i, translation in enumerate(translations):
                warn(n_before + i + 1, translation)
                print(translation.text, file=out)
            n_before += len(batch)
            out.flush()
        if draft:
            out.close()


def warn(line: int, translation: Translation) -> None:
    """Say on standard error what a reader of the translation must know."""
    if translation.unknown:
        print(f"line {line}: nothing in it is in the vocabulary; left as it is", file=sys.stderr)
    if translation.lost_tokens:
        print(
            f"line {line}: a sentence is longer than the model's window; {translation.lost_tokens} tokens were cut",
            file=sys.stderr,
        )
    elif translation.n_pieces > 1:
        print(f"line {line}: long, translated in {translation.n_pieces} pieces", file=sys.stderr)


if __name__ == "__main__":
    run_command("translate.py", main)
