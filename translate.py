"""Translate texts: `python translate.py "文" ...`, `--input FILE`, lines of standard input, or a prompt."""

import atexit
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TextIO, cast

from tqdm import tqdm

from const.path import EXPORTED
from utils.command import Parser, run_command
from utils.dataset.cache import file_hash
from utils.dataset.text import decoded_lines, open_text
from utils.file import STDOUT, atomic_file
from utils.memory import keep_freed_memory
from utils.run import find_run, run_reading
from utils.search.glossary import Glossary, read_terms
from utils.search.inspection import Inspector
from utils.terminal.catalog import Catalog
from utils.terminal.input import (
    Ahead,
    Conversation,
    arriving_lines,
    ask_for_lines,
    converse,
    count_lines,
    lines_after,
    paired,
)
from utils.terminal.option import SHAPED, Options, add_model_options, add_search_options, search_configs
from utils.terminal.output import Presenter, SourceText
from utils.terminal.subtitles import Subtitles
from utils.terminal.unfinished import Unfinished, unfinished
from utils.text.words import PlainText

if TYPE_CHECKING:
    from utils.load import Run

_NEEDED = ("config", "model", "tokenizer", EXPORTED)  # what the names of the files begin with that translating reads
LINES_AT_ONCE = 1000  # enough to batch by length, few enough to keep in memory
LINES_AT_FIRST = 100  # of those that are written as they are translated


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = Parser(
        prog="translate.py",
        usage="python translate.py [TEXT ...] [--run RUN] [--input FILE] [--output FILE] [options]",
        description="Translate texts with a trained run; without texts, each line of a file or of standard input.",
        epilog="""examples:
  python translate.py "京都は日本の古都である。"
  python translate.py --input notes.ja --output notes.en
  python translate.py --input film.srt --output film.en.srt         subtitles: numbers, times and tags stay
  python translate.py --input messages.po --output messages.ja.po   messages of a program: those without a translation
  cat notes.ja | python translate.py --run kftt_ja_en-20260101-120000 > notes.en
  python translate.py                                              interactive prompt
  python translate.py "雨が降っています。" --n-best 4                the four best translations
  python translate.py "雨が降っています。" --alternatives 5         likeliest tokens at each position
  python translate.py "雨が降っています。" --score "It is raining."
  python translate.py "雨が降っています。" --attention attention.html
  python translate.py "雨が降っています。" --explain page.html        how the model came to it, step by step
  python translate.py --input notes.ja --format jsonl --alignment --log-probs
  python translate.py --input notes.ja --sample --minimum-bayes-risk
  python translate.py --input notes.ja --glossary terms.tsv
  python translate.py --input notes.ja --run pickles/ONE --run pickles/OTHER

Lines are translated as they arrive; lines that are already available are translated together. Where the translation
of a file was stopped, the same command goes on with it. Exit status: 0 on success, 2 on a usage or input error, 130
after Ctrl-C.""",
    )
    parser.add_argument("texts", nargs="*", default=[], help="texts to translate")
    files = parser.add_argument_group("input and output")
    files.add_argument("--input", type=Path, metavar="FILE", help="UTF-8 text, line by line, or an .srt or .po file")
    files.add_argument("--output", type=Path, metavar="FILE", help="file to write to (default: standard output)")
    text = "kind of the texts, by a tag of the run's vocabulary, such as law; '' for none (default: the run's own)"
    files.add_argument("--tag", metavar="TAG", help=text)
    text = "spaces separate all words and marks of the texts, as in the training text; translations are alike"
    files.add_argument("--pre-tokenized", action="store_true", help=text)
    which = (
        "run to use, or a folder from `export.py --to ctranslate2` (default: the run that reads the text best); repeat "
        "for an ensemble"
    )
    add_model_options(parser, which)
    text = "not needed, as the folder of --run tells; READMEs of folders that earlier versions exported name it"
    parser.add_argument("--engine", choices=["miyako", "ctranslate2"], help=text)
    shown = parser.add_argument_group("output format")
    text = "text, JSON Lines, or source words, target words and links (0-0 1-2) by attention, tab-separated"
    shown.add_argument("--format", choices=["text", "jsonl", "pharaoh"], default="text", help=text)
    text = "show the N best translations of each line; as text: line number, score and translation, tab-separated"
    shown.add_argument("--n-best", type=int, metavar="N", default=1, help=text)
    shown.add_argument("--log-probs", action="store_true", help="add each token's log-probability (jsonl)")
    shown.add_argument("--alignment", action="store_true", help="add the token alignment by attention (jsonl)")
    text = "draw the attention for one text and its translation or --score: FILE.html, an interactive page, or FILE.png"
    shown.add_argument("--attention", type=Path, metavar="FILE", help=text)
    text = "walk one text through the model on FILE.html: tokens, embeddings, attention, layers' guesses and the beam"
    shown.add_argument("--explain", type=Path, metavar="FILE", help=text)
    shown.add_argument("--prefix", metavar="TEXT", help="start each translation with TEXT")
    text = (
        "lines of a source term, a tab and its target term, which is to be in the translation where the source has it"
    )
    shown.add_argument("--glossary", type=Path, metavar="FILE", help=text)
    text = "for one text, show the K likeliest tokens at each position, or only at the one after --prefix"
    shown.add_argument("--alternatives", type=int, metavar="K", help=text)
    text = "score given translations, a text for one text or a file for lines: log-probability, tokens and perplexity"
    shown.add_argument("--score", metavar="TRANSLATION", help=text)
    add_search_options(parser)
    return parser


def main() -> None:
    """Read the options, load the run and translate."""
    options = Options.read(build_parser().parse_args())
    stdin = Ahead(cast(BufferedIOBase, sys.stdin.buffer))
    file = taken_apart(options.input)
    title, inspector, source_text, folders, run = load(options, file, stdin)
    inspector.translator.minimum_bayes_risk = options.minimum_bayes_risk
    if run is not None and options.attention is not None:
        from utils.visualize.attention import show_attention  # imports Matplotlib, which is slow

        show_attention(run, inspector.translator, options.texts[0], options.attention, options.score, options.prefix)
    if run is not None and options.explain is not None:
        from utils.visualize.explain import show_explanation  # imports Matplotlib, which is slow

        show_explanation(run, inspector.translator, options.texts[0], options.explain, options.prefix)
    elsewhere = options.texts or options.input or options.output or options.score
    if not elsewhere and options.format == "text" and sys.stdin.isatty() and sys.stdout.isatty():
        converse(Conversation(inspector.translator, options.n_best, options.prefix), title)
        return
    # Presenter.translations (utils/terminal/output.py) calls Translator.translate (utils/search/translator.py)
    if options.run is None and sys.stderr.isatty():
        log(title)
    presenter = Presenter(inspector, options, log, source_text)
    if file is None:
        write_lines(presenter, options, stdin, folders)
    else:
        bar = tqdm(total=len(file.texts), unit="text", disable=None, leave=False)
        with destination(options) as (out, _), bar:
            out.write(presenter.translated_file(file, bar.update))
        presenter.conclude(hint="")


def taken_apart(path: Path | None) -> Subtitles | Catalog | None:
    """Read a file of which only the texts are translated; None: each line is a text."""
    shape = SHAPED.fullmatch(str(path))
    if path is None or shape is None:
        return None
    return Subtitles(path) if shape[1].lower() == "srt" else Catalog(path)


class Loaded(NamedTuple):
    """What translates, and what is known of it."""

    title: str
    inspector: Inspector  # of a `Translator` and its networks
    source_text: SourceText
    folders: Sequence[Path]  # of the runs
    run: "Run | None" = None  # the first; None: it was exported


def load(options: Options, file: Subtitles | Catalog | None, stdin: Ahead) -> Loaded:
    """Load the runs that are to translate, or what was exported from one."""
    keep_freed_memory()
    terms = read_terms(options.glossary) if options.glossary else None
    folders, why = [find_run(Path(name)) for name in options.run or []], ""
    if not folders:
        folder, reason = run_reading(beginning(options, file, stdin))
        folders, why = [folder], reason and f" ({reason}; --run names another)"
    is_plain = not options.pre_tokenized
    if (folders[0] / EXPORTED).is_file():
        from utils.export.engine import TranslatorSettings, load_exported

        settings = TranslatorSettings.load(folders[0])
        inspector = load_exported(
            folders[0],
            options.device,
            search_configs(settings.search, options)[0],
            options.precision,
            plain=is_plain,
            tag=options.tag,
        )
        title = f"{settings.name}, CTranslate2: {settings.src_lang} → {settings.tgt_lang}"
        return Loaded(title, inspector, SourceText(settings.src_lang), folders)
    # only now: torch takes seconds to import, which neither --help, nor a mistake, nor CTranslate2 should wait for;
    # a sixth of them goes into looking for garbage among half a million objects that stay
    gc.disable()
    from utils.device import pick_device
    from utils.load import build_translator, load_run

    gc.enable()
    device = pick_device(options.device)
    runs = [load_run(folder, device, plain=is_plain, tag=options.tag) for folder in folders]
    own = runs[0].config
    search, sampling = search_configs(own.search, options)
    translator = build_translator(runs, search, sampling, options.precision)
    if terms is not None:
        translator.glossary = Glossary(terms, translator.tokenizers.tgt, own.data.src_lang)
    names = " + ".join(run.folder.resolve().name for run in runs)
    title = f"{names}: {own.data.src_lang} → {own.data.tgt_lang}{why}"
    is_tokenized = own.data.is_tokenized and not isinstance(runs[0].tokenizers.src, PlainText)
    inspector = Inspector(translator, [run.model for run in runs])
    return Loaded(title, inspector, SourceText(own.data.src_lang, is_tokenized), folders, runs[0])


def beginning(options: Options, file: Subtitles | Catalog | None, stdin: Ahead) -> str:
    """Return the beginning of what is to be translated, as far as it tells its language; nothing of what is typed."""
    if options.texts:
        return " ".join(options.texts)
    if file is not None:
        return " ".join(text.text for text in file.texts)
    if options.input is None:
        return "" if sys.stdin.isatty() else stdin.beginning()
    if not options.input.is_file():
        return ""
    with open_text(options.input) as text:
        return Ahead(text).beginning()


def write_lines(presenter: Presenter, options: Options, stdin: Ahead, folders: Sequence[Path]) -> None:
    """Write the requested output for texts, or for the lines of a file or of standard input."""
    texts, score, stopped, is_empty = options.texts, options.score, None, True
    # refuses what is not UTF-8 before anything is written
    files = [] if texts else [Path(path) for path in (options.input, score) if path]
    n_lines = min(filter(None, map(count_lines, files)), default=None)
    with destination(options, folders) as (out, part):
        if options.alternatives:
            lines = presenter.alternatives(texts[0], options.alternatives)
        elif texts and score is not None:
            lines = presenter.scores(1, [(texts[0], score)])
        elif texts:
            lines = presenter.translations(1, texts)
        else:
            # a progress bar would run through the lines of a terminal
            bar = tqdm(total=n_lines, unit="line", disable=True if out.isatty() else None, leave=False)
            bar.update(part.n_lines if part else 0)
            lines = of_stream(presenter, options, stdin, bar, part)
        try:
            for line in lines:
                print(line, file=out, flush=True)
                is_empty = False
        except ValueError as error:  # a line of a pipe that cannot be read; those before it are kept
            if is_empty:
                raise
            stopped = error
    presenter.conclude()
    if stopped is not None:
        kept = f"; what comes before it is in {options.output}" if options.output else ""
        raise ValueError(f"{stopped}{kept}") from stopped


def of_stream(
    presenter: Presenter, options: Options, stdin: Ahead, bar: "tqdm[NoReturn]", part: Unfinished | None
) -> Iterator[str]:
    """Yield the output for the lines of a file or standard input, those already available before waiting for more."""
    path, score = options.input, options.score
    with ExitStack() as stack, bar:
        if path is None:
            ask_for_lines()
        file = stdin if path is None else stack.enter_context(open_text(path))
        name = "standard input" if path is None else str(path)
        n_first = LINES_AT_ONCE if options.output else LINES_AT_FIRST
        chunks: Iterator[Any] = arriving_lines(file, name, n_first, LINES_AT_ONCE, options.keeps_ends)
        present: Callable[..., Iterator[str]] = presenter.translations
        if score is not None:
            given = stack.enter_context(open_text(Path(score)))
            chunks, present = paired(chunks, decoded_lines(given, score), (name, score)), presenter.scores
        n_done = part.n_lines if part else 0
        number = n_done + 1
        for chunk in lines_after(n_done, chunks):
            yield from present(number, chunk, bar.update)
            number += len(chunk)
            if part:
                part.note(chunk)
    if score is not None:
        log(presenter.total())


@contextmanager
def destination(options: Options, folders: Sequence[Path] = ()) -> Iterator[tuple[TextIO, Unfinished | None]]:
    """Yield standard output, or a file that appears only once it is complete; from a file's lines, it may be begun."""
    output, source = options.output, options.input
    if output is None or str(output) in STDOUT:
        yield sys.stdout, None
    elif folders and source is not None and source.is_file() and options.score is None:
        needed = (file for folder in folders for file in sorted(folder.iterdir()) if file.name.startswith(_NEEDED))
        command = options.affecting_lines() | {"--run": " ".join(map(file_hash, needed))}
        with open_text(source) as text:
            lines = decoded_lines(text, str(source), options.keeps_ends)
            with unfinished(output, lines, command, log) as begun:
                yield begun
    else:
        with atomic_file(output) as draft, draft.open("w", encoding="utf-8", newline="\n") as file:
            yield file, None


def log(line: str) -> None:
    """Print a line on standard error, above progress bars, wherever the translations go."""
    tqdm.write(line, file=sys.stderr)


if __name__ == "__main__":
    atexit.register(gc.freeze)  # looking for garbage at the end takes 0.3 s, and all memory goes back anyway
    run_command("translate.py", main)
