"""Translate texts: `python translate.py "文" ...`, `--input FILE`, lines of standard input, or a prompt."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import TextIO, cast, get_args

from tqdm import tqdm

from config.training import Device
from const.corpora import VERSION
from utils.command import Namespace, Parser, run_command
from utils.config import TranslationConfig
from utils.dataset.text import decoded_lines
from utils.device import keep_freed_memory, pick_device
from utils.export import EXPORTED
from utils.file import atomic_file
from utils.run import CONFIG, build_translator, find_run, load_run
from utils.search.inspection import Inspector
from utils.terminal.input import (
    Conversation,
    LineStream,
    ask_for_lines,
    count_lines,
    history_file,
    in_chunks,
    kept_history,
    paired,
    typed_lines,
)
from utils.terminal.option import add_search_options, refuse_contradictions, sampling_config, search_config
from utils.terminal.output import Presenter, Shown

LINES_AT_ONCE = 1000  # enough to batch by length, few enough to keep in memory


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = Parser(
        prog="translate.py",
        version=VERSION,
        usage="python translate.py [TEXT ...] [--run RUN] [--input FILE] [--output FILE] [options]",
        description="Translate texts with a trained run; without texts, each line of a file or of standard input.",
        epilog="""examples:
  python translate.py "京都は日本の古都である。"
  python translate.py "雨が降っています。" "駅はどこですか。" --beam 1
  python translate.py --input notes.ja --output notes.en
  cat notes.ja | python translate.py --run kftt_ja_en-20260101-120000 > notes.en
  python translate.py                                              interactive prompt
  python translate.py "雨が降っています。" --n_best 4                the four best translations
  python translate.py "雨が降っています。" --prefix Rain            start with a given word
  python translate.py "雨が降っています。" --alternatives 5         likeliest tokens at each position
  python translate.py "雨が降っています。" --score "It is raining."
  python translate.py "雨が降っています。" --attention attention.html
  python translate.py --input notes.ja --format jsonl --alignment --log_probs
  python translate.py --input notes.ja --format pharaoh             words and their alignment
  python translate.py --input notes.ja --sample --minimum_bayes_risk
  python translate.py --input notes.ja --run pickles/ONE --run pickles/OTHER
  python translate.py --input notes.ja --engine ctranslate2 --run EXPORTED

Lines are translated as they arrive; lines that are already available are translated together. Exit status: 0 on
success, 2 on a usage or input error, 130 after Ctrl-C.""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("texts", nargs="*", type=str, default=[], help="texts to translate")
    source = parser.add_argument_group("input and output")
    source.add_argument("--input", type=Path, metavar="FILE", help="UTF-8 text file to translate line by line")
    source.add_argument("--output", type=Path, metavar="FILE", help="file to write to (default: standard output)")
    model = parser.add_argument_group("model")
    model.add_argument(
        "--run", type=str, action="append", help="run to use (default: the one trained last); repeat for an ensemble"
    )
    model.add_argument(
        "--device", choices=get_args(Device), default="auto", help="cpu, cuda, or auto: cuda if available"
    )
    model.add_argument(
        "--precision",
        choices=["auto", "fp32", "bf16", "fp16"],
        help="precision of matrix products; auto: bf16 where it is fast (default: the run's own)",
    )
    model.add_argument(
        "--engine",
        choices=["miyako", "ctranslate2"],
        default="miyako",
        help="decoding engine; ctranslate2 takes as --run a folder written by `export.py --to ctranslate2`, computes "
        "in the precision of its weights by default, and normalises scores without <unk>",
    )
    shown = parser.add_argument_group("output format")
    shown.add_argument(
        "--format",
        choices=["text", "jsonl", "pharaoh"],
        default="text",
        help="text, JSON Lines, or tab-separated source words, target words and links (0-0 1-2) by "
        "attention; in scripts without spaces, each token is a word",
    )
    shown.add_argument(
        "--n_best",
        type=int,
        metavar="N",
        default=1,
        help="show the N best translations of each line; as text: line number, score and translation, tab-separated",
    )
    shown.add_argument(
        "--log_probs", action="store_true", help="add each token's log-probability, in single precision (jsonl)"
    )
    shown.add_argument(
        "--alignment", action="store_true", help="add the token alignment by attention, in Pharaoh format (jsonl)"
    )
    shown.add_argument(
        "--attention",
        type=Path,
        metavar="FILE",
        help="draw the attention of every head for one text and its translation, or the one given by --score; "
        "FILE.html is an interactive page, FILE.png a picture",
    )
    shown.add_argument("--prefix", type=str, metavar="TEXT", help="start each translation with TEXT")
    shown.add_argument(
        "--alternatives",
        type=int,
        metavar="K",
        help="for one text, show the K likeliest tokens at each position, or only at the one after --prefix",
    )
    shown.add_argument(
        "--score",
        type=str,
        metavar="TRANSLATION",
        help="score given translations: a text for one text, a file for lines; as text: log-probability, number of "
        "tokens with </s>, and perplexity, tab-separated",
    )
    add_search_options(parser)
    return parser


def main() -> None:
    """Read the arguments, load the run and translate."""
    arguments = build_parser().parse_args()
    refuse_contradictions(arguments)
    # a text with line breaks is still one text
    arguments.texts = [" ".join(text.split("\n")) for text in arguments.texts]
    folders = [find_run(Path(name)) for name in arguments.run or []] or [find_run(None)]
    exported = arguments.engine == "ctranslate2"
    title, inspector, tokenized = load_exported(arguments, folders[0]) if exported else load(arguments, folders)
    if is_conversation(arguments):
        converse(Conversation(inspector.translator, arguments.n_best, arguments.prefix or ""), title)
        return
    shown = Shown(
        arguments.n_best,
        arguments.prefix or "",
        arguments.format == "jsonl",
        arguments.log_probs,
        arguments.alignment,
        arguments.format == "pharaoh",
    )
    write(Presenter(inspector, shown, say, tokenized), arguments)


def load(arguments: Namespace, folders: Sequence[Path]) -> tuple[str, Inspector, bool]:
    """Return a title, what translates and inspects, and whether it learned from tokenized text; draw the attention."""
    for folder in folders:
        if (folder / EXPORTED).is_file():
            raise ValueError(f"{folder} was exported for CTranslate2: add --engine ctranslate2")
    own = TranslationConfig.load(folders[0] / CONFIG)
    search = search_config(own.search, arguments, arguments.n_best)
    sampling = sampling_config(arguments, arguments.n_best)
    device = pick_device(arguments.device)
    runs = [load_run(folder, device) for folder in folders]
    precision = arguments.precision or runs[0].precision
    translator = build_translator(runs, search, sampling, arguments.minimum_bayes_risk, precision)
    if arguments.attention is not None:
        from utils.visualize.attention import show_attention  # imports Matplotlib, which is slow

        (text,), prefix = arguments.texts, arguments.prefix or ""
        show_attention(runs[0], translator, text, arguments.attention, arguments.score, prefix)
    names = " + ".join(run.folder.resolve().name for run in runs)
    title = f"{names}: {own.data.src_lang} → {own.data.tgt_lang}"
    return title, Inspector(translator, [run.model for run in runs]), own.data.is_tokenized


def load_exported(arguments: Namespace, folder: Path) -> tuple[str, Inspector, bool]:
    """Return the same for CTranslate2 and an exported run."""
    from utils.export import ctranslate2

    settings = ctranslate2.TranslatorSettings.load(folder)
    search, device = search_config(settings.search, arguments, arguments.n_best), pick_device(arguments.device)
    translator = ctranslate2.load_exported(folder, device, search, arguments.precision, arguments.minimum_bayes_risk)
    title = f"{settings.name}, CTranslate2: {settings.src_lang} → {settings.tgt_lang}"
    return title, ctranslate2.CTranslate2Inspector(translator), False


def write(presenter: Presenter, arguments: Namespace) -> None:
    """Write the requested output for texts, a file or standard input."""
    texts, score = arguments.texts, arguments.score
    with destination(arguments.output) as out:
        if arguments.alternatives:
            show(presenter.alternatives(texts[0], arguments.alternatives), out)
        elif texts and score is not None:
            show(presenter.judgements(1, [(texts[0], score)], by_token=True), out)
        elif texts:
            show(presenter.translations(1, texts, lambda _: None), out)
        elif arguments.input:
            with arguments.input.open("rb") as file:
                write_stream(presenter, file, str(arguments.input), count_lines(arguments.input), score, out)
        else:
            ask_for_lines()
            write_stream(presenter, cast(BufferedIOBase, sys.stdin.buffer), "standard input", None, score, out)
    presenter.notices.conclude()


def write_stream(
    presenter: Presenter, file: BufferedIOBase, name: str, n_lines: int | None, score: str | None, out: TextIO
) -> None:
    """Write the output for the lines of a stream, those already available before waiting for more."""
    stream = LineStream(file)
    chunks = in_chunks(decoded_lines(stream, name), stream.is_ready, LINES_AT_ONCE)
    is_hidden = out.isatty() or None  # a progress bar would run through the lines
    number = 1
    with tqdm(total=n_lines, unit="line", disable=is_hidden, leave=False) as bar:
        if score is None:
            for chunk in chunks:
                show(presenter.translations(number, chunk, bar.update), out)
                number += len(chunk)
            return
        with Path(score).open("rb") as given:
            for pairs in paired(chunks, decoded_lines(given, score), (name, score)):
                show(presenter.judgements(number, pairs), out)
                bar.update(len(pairs))
                number += len(pairs)
    say(presenter.total())


def show(lines: Iterable[str], out: TextIO) -> None:
    """Write lines and flush them."""
    for line in lines:
        print(line, file=out)
    out.flush()


@contextmanager
def destination(output: Path | None) -> Iterator[TextIO]:
    """Yield standard output, or a file that appears only once it is complete."""
    if output is None:
        yield sys.stdout
        return
    with atomic_file(output) as draft, draft.open("w", encoding="utf-8", newline="\n") as file:
        yield file


def is_conversation(arguments: Namespace) -> bool:
    """Return whether to open a prompt: both ends are a terminal, and nothing else is asked for."""
    elsewhere = arguments.texts or arguments.input or arguments.output or arguments.score
    return not elsewhere and arguments.format == "text" and sys.stdin.isatty() and sys.stdout.isatty()


def converse(conversation: Conversation, title: str) -> None:
    """Answer typed lines until the user leaves."""
    say(f"{title}; :help lists the commands, Ctrl-D quits")
    with kept_history(history_file()):
        for line in typed_lines():
            try:
                show(conversation.answer(line), sys.stdout)
            except ValueError as error:
                say(str(error))
            if conversation.is_over:
                return


def say(line: str) -> None:
    """Print a line on standard error, above progress bars, wherever the translations go."""
    tqdm.write(line, file=sys.stderr)


if __name__ == "__main__":
    keep_freed_memory()
    run_command("translate.py", main)
