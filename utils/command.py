"""What all commands share: one-line errors that name the remedy, exit statuses, plain tables and durations."""

import argparse
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from tqdm import tqdm

from config.reader import near_name
from const.corpora import VERSION
from const.path import ROOT
from utils.file import from_here

if TYPE_CHECKING:
    from jinja2 import Template

# Torch's threads spin while they wait for one another. Where other programs want the processor as well, that keeps it
# from the thread they wait for, and a training may take ten times as long; so they give up and sleep after a hundredth
# of libgomp's 300,000 turns, which a training on a quiet machine does not notice. It is read when torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

Log = Callable[[str], None]  # is told what takes time, and what is odd; such as `print`
INTERRUPTED, TERMINATED = 130, 143  # 128 + SIGINT, 128 + SIGTERM, as shells count them


def fail(program: str, message: str) -> NoReturn:
    """Print one line on standard error and exit with status 2."""
    print(f"{program}: error: {message}", file=sys.stderr)
    sys.exit(2)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its kind if it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


# the CPU allocator, the CUDA driver and cuBLAS report it as a RuntimeError with one of these phrases
_OUT_OF_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|ALLOC_FAILED|std::bad_alloc", re.I)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether this is the error of a device that has no memory left; torch's own is a RuntimeError, too."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    )


class Namespace(argparse.Namespace):
    """Parsed options, also by their names."""

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an option's value, or the default where there is no such option."""
        return getattr(self, name, default)


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes are one line with the nearest option, and whose options may be typed with - or _.

    Its help wraps the description, and keeps the lines of examples (`epilog`). A command has --version; verbs and
    benchmarks, whose `prog` is no file, do not.
    """

    def __init__(self, description: str = "", **options: Any) -> None:
        wrapped = textwrap.fill(description, shutil.get_terminal_size().columns - 2)  # as argparse wraps options
        as_it_stands = argparse.RawDescriptionHelpFormatter
        # no abbreviations: `--resum` taken as `--resume` would be a surprise
        super().__init__(description=wrapped, formatter_class=as_it_stands, allow_abbrev=False, **options)
        if self.prog.endswith(".py"):
            self.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse with every option spelled as it was declared; of a verb, too."""
        known = {option.replace("_", "-"): option for option in self._option_string_actions}

        def declared(option: re.Match[str]) -> str:
            return known.get(option[0].replace("_", "-"), option[0])

        spelled = [re.sub("^--[^=]*", declared, word) for word in (sys.argv[1:] if args is None else args)]
        return super().parse_known_args(spelled, Namespace() if namespace is None else namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, or exit with the option that was probably meant."""
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            if not re.fullmatch(r"--[A-Za-z][\w.-]*", name, re.ASCII):
                hint = ": put -- before a text that begins with -" if name.startswith("-") else ""
                self.error(f"unrecognized argument {unknown[0]}{hint}")
            name, verb = name.removeprefix("--"), arguments.get("verb")
            verbs = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
            parsers = [self, *(choices[verb] for choices in verbs)]
            known = [option.removeprefix("--") for parser in parsers for option in parser._option_string_actions]
            remedy = f"did you mean --{near}?" if (near := near_name(name, known)) else "see --help"
            fail(self.prog if verb is None else f"{self.prog} {verb}", f"unknown option {name}: {remedy}")
        return arguments

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        fail(self.prog, " ".join(message.split()))


def option_of(name: str) -> str:
    """Return how an option is spelled: --n-best for n_best; a setting as its field, --model.d_model."""
    return f"--{name if '.' in name else name.replace('_', '-')}"


def typed_command(program: str) -> str:
    """Return what starts a program of this project from here, without Poetry on the path or an active environment."""
    return shlex.join(str(from_here(path)) for path in (Path(sys.executable), ROOT / program))


def require_options_at_least(arguments: Namespace, **minimum: int) -> None:
    """Refuse options whose values are below a minimum; None passes, and a list is checked value by value."""
    for option, lowest in minimum.items():
        given = arguments[option]
        for value in given if isinstance(given, list) else [given]:
            if value is not None and value < lowest:
                raise ValueError(f"{option_of(option)} {value}: give {lowest:,} or more")


@contextmanager
def needing_group(group: str) -> Iterator[None]:
    """Around imports of packages from an optional dependency group: tell how to install those that cannot be loaded."""
    try:
        yield
    except ImportError as error:  # also of a shared library
        raise ValueError(f"{error.name} cannot be loaded ({error}): `poetry install --with {group}`") from error


@contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """Within the block, SIGTERM raises SystemExit instead of killing, so that `finally` clauses run."""

    def end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 (the signature is Python's)
        sys.exit(TERMINATED)

    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_command(program: str, main: Callable[[], object]) -> NoReturn:
    """Run a command and exit: 0 on success, 2 after a user's mistake, 130 after Ctrl-C; without a traceback.

    `python -X dev train.py ...` shows the traceback of a mistake, too.

    SIGTERM ends it like Ctrl-C, with 143, so that nothing half-written stays; a command may handle it otherwise.
    """
    os.environ["MPLBACKEND"] = "agg"  # pictures are files; what a notebook sets here, only its own kernel may know
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # `translate.py <&-`: closed by the caller
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 (open to the end)
    try:
        with ending_at_sigterm():
            main()
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # `translate.py ... | head` has read enough
        sys.stderr.close()
        sys.exit(0)
    except UnicodeEncodeError as error:
        odd = ascii(error.object[error.start])
        fail(program, f"the output is in {error.encoding}, which lacks {odd}: set PYTHONIOENCODING=utf-8")
    except (ValueError, OSError) as error:
        if sys.flags.dev_mode:
            raise
        fail(program, " ".join(str(error).split()))
    except (MemoryError, RuntimeError) as error:
        if sys.flags.dev_mode or not is_out_of_memory(error):
            raise
        fail(program, f"out of memory ({first_line(error)}): free some, or ask for less at a time")
    sys.exit(0)


def print_above_bars(text: str) -> None:
    """Print to standard output immediately, above any progress bars on the same terminal."""
    tqdm.write(text)
    sys.stdout.flush()


def confirm(question: str) -> None:
    """Ask whether to go on: any answer but y, as well as Ctrl-C or the end of input, interrupts the command.

    Where standard input and output are not a terminal, nobody is asked.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    try:
        answer = input(f"{question} [y/N] ")
    except (EOFError, KeyboardInterrupt):
        answer = ""
        print()  # what follows starts on a new line
    if answer.strip().lower() not in ("y", "yes"):
        raise KeyboardInterrupt


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes, hours or days, whichever reads best."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def columns_of(text: str) -> int:
    """Return how many terminal columns a text takes, two for a Japanese character (Unicode Standard Annex #11)."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def aligned(rows: Sequence[Sequence[str]], alignment: str, indent: str = "  ") -> list[str]:
    """Return a line for each row, its cells in columns that `alignment` says of: `l` or `r` for each."""
    columns = []
    for column, side in zip(zip(*rows, strict=True), alignment, strict=True):
        width = max(map(columns_of, column))
        spaces = [" " * (width - columns_of(cell)) for cell in column]
        columns.append([s + cell if side == "r" else cell + s for s, cell in zip(spaces, column, strict=True)])
    return [(indent + "  ".join(row)).rstrip() for row in zip(*columns, strict=True)]


def wrapped(text: str, width: int) -> list[str]:
    """Wrap a text into lines of at most `width` columns, where `width` is 2 or more.

    A line is broken after the last space in its second half or, if there is none, between two characters. Control
    characters, which a terminal would obey instead of showing, become spaces.
    """
    lines, line = [], ""
    for character in text:
        line += character if character.isprintable() else " "
        if columns_of(line.rstrip()) > width:
            end = line.rfind(" ", len(line) // 2, -1) + 1 or len(line) - 1
            lines.append(line[:end].rstrip())
            line = line[end:]
    return [*lines, line.rstrip()]


def bar(share: float, length: int = 24) -> str:
    """Return a bar whose length is a share, 0 to 1, of the full length; at least one mark if the share is not 0."""
    return "#" * (max(1, round(share * length)) if share > 0 else 0)


def page_template(file: Path) -> "Template":
    """Load a template that raises an error if a value is missing; one of HTML escapes what it is given.

    In it, other templates are named by their paths in this repository, and `script("name.js")` is a script beside it,
    and before that all that it imports, as one that imports nothing.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(ROOT),
        autoescape=file.suffix == ".html",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["script"] = lambda name: Markup(script_of(file.with_name(name)))
    return environment.get_template(file.relative_to(ROOT).as_posix())


def script_of(file: Path) -> str:
    """Return a JavaScript module and all that it imports as one script, which imports nothing."""
    return "\n".join(_scripts(file).values())


def content_policy(html: str, scripts: str = "", sources: str = "'self'") -> str:
    """Return a policy that lets a browser run only a page's own script and style, and ask only its own server.

    `scripts` are others that may run, and `sources` what else may be read.
    """

    def hashed(element: str) -> str:
        found = re.search(f'<{element}(?: type="module")?>(.*?)</{element}>', html, re.S)
        return f"'sha256-{b64encode(sha256(found[1].encode()).digest()).decode()}'" if found else "'none'"

    runs = " ".join(filter(None, [hashed("script"), scripts]))
    return (
        f"default-src 'none'; script-src {runs}; style-src {hashed('style')}; img-src data:; "
        f"connect-src {sources}; base-uri 'none'; form-action 'none'"
    )


def _scripts(file: Path) -> dict[Path, str]:
    """Return the text of a JavaScript module after those of all modules that it imports, as parts of one script."""
    text, imports = file.read_text(encoding="utf-8"), re.compile(r'^import [^;]* from "(.+)";\n', re.M)
    scripts: dict[Path, str] = {}
    for name in imports.findall(text):
        scripts |= _scripts((file.parent / name).resolve())
    return scripts | {file: re.sub(r"^export ", "", imports.sub("", text), flags=re.M)}
