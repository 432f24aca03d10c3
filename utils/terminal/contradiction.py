"""Options of translate.py that contradict each other."""

from pathlib import Path

from jsonargparse import Namespace

from utils.command_line import require_options_at_least
from utils.terminal.option import refuse_rescoring, sampling_config

PICTURES = (".html", ".png")  # what a translator's attention can be drawn as


def refuse_contradictions(arguments: Namespace) -> None:
    """What makes no sense together is refused before anything is loaded.

    Raises:
        ValueError: something does not; the message says what to leave out.
    """
    texts, file = arguments.texts, arguments.input
    if texts and file:
        raise ValueError(f"texts and --input {file} at once: give one of them")
    if file:
        _require_readable(file)
    require_options_at_least(arguments, n_best=1, alternatives=1)
    for option in ("log_probs", "alignment"):
        if arguments[option] and arguments.format != "jsonl":
            raise ValueError(f"--{option} has no place in lines of text: add --format jsonl")
    if arguments.format == "pharaoh":
        _beside_links(arguments)
    if arguments.attention is not None:
        _beside_attention(arguments)
    if arguments.alternatives and len(texts) != 1:
        raise ValueError(f"--alternatives are those of one text, and {len(texts)} are given: give one")
    if arguments.score is not None:
        if len(texts) > 1:
            raise ValueError(f"--score and {len(texts)} texts: give one, or two files, --input FILE --score FILE")
        if not texts:
            _require_readable(Path(arguments.score), " (--score takes the translations of lines from a file)")
        for option in ("alternatives", "prefix"):
            if arguments[option]:
                raise ValueError(f"--score and --{option} at once: give one of them")
    refuse_rescoring(arguments)
    if arguments.engine == "ctranslate2":
        _beyond_ctranslate2(arguments)


def _require_readable(file: Path, hint: str = "") -> None:
    """A file or a pipe, `<(...)` of a shell among them."""
    if file.is_dir():
        raise ValueError(f"{file} is a folder: give a file{hint}")
    if not file.exists():
        raise ValueError(f"no such file: {file}{hint}")


def _beside_links(arguments: Namespace) -> None:
    """Links are those of the best translation of each line."""
    for option in ("alternatives", "score"):
        if arguments[option] is not None:
            raise ValueError(f"--format pharaoh and --{option} at once: give one of them")
    if arguments.n_best > 1:
        raise ValueError(f"--format pharaoh has a line a text, and --n_best {arguments.n_best} more: give one of them")


def _beside_attention(arguments: Namespace) -> None:
    """A picture shows one model, one text and one translation."""
    refuse_other_pictures(arguments.attention)
    if arguments.input:
        raise ValueError(f"--attention is that of one text: give the text in place of --input {arguments.input}")
    if len(arguments.texts) != 1:
        raise ValueError(f"--attention is that of one text, and {len(arguments.texts)} are given: give one")
    if len(arguments.run or []) > 1:
        raise ValueError(f"--attention is that of one run, and {len(arguments.run)} are given: give one --run")
    if arguments.rescore_with:
        raise ValueError("--attention shows the translator alone: leave out --rescore-with")


def _beyond_ctranslate2(arguments: Namespace) -> None:
    """What only our own search can do."""
    runs = arguments.run or []
    if len(runs) > 1:
        raise ValueError(f"--engine ctranslate2 and {len(runs)} runs: an ensemble needs our own search; give one --run")
    given = [option for option in ("sample", "alternatives", "alignment", "attention") if arguments[option]]
    given += ["rescore-with"] if arguments.rescore_with else []
    given += ["format pharaoh"] if arguments.format == "pharaoh" else []
    if given:
        raise ValueError(f"--engine ctranslate2 and --{given[0]} at once: that needs our own search; leave one out")
    sampling_config(arguments)  # refuses the options of drawn translations


def refuse_other_pictures(path: Path) -> None:
    """An error where a file would be of no kind that attention can be drawn as."""
    if path.suffix not in PICTURES:
        raise ValueError(f"{path} is neither {' nor '.join(PICTURES)}: give the file one of these endings")
