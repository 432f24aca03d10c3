"""Options of translate.py that contradict each other."""

from pathlib import Path

from jsonargparse import Namespace

from utils.command_line import require_options_at_least
from utils.terminal.option import sampling_config

PICTURES = (".html", ".png")  # the formats attention can be drawn in


def refuse_contradictions(arguments: Namespace) -> None:
    """Refuse options that make no sense together, before anything is loaded.

    Raises:
        ValueError: some options do not fit together; the message says what to change.
    """
    texts, file = arguments.texts, arguments.input
    if texts and file:
        raise ValueError(f"texts and --input {file} at once: give one of them")
    if file:
        _require_readable(file)
    require_options_at_least(arguments, n_best=1, alternatives=1)
    for option in ("log_probs", "alignment"):
        if arguments[option] and arguments.format != "jsonl":
            raise ValueError(f"--{option} does not fit in lines of text: add --format jsonl")
    if arguments.format == "pharaoh":
        _beside_links(arguments)
    if arguments.attention is not None:
        _beside_attention(arguments)
    if arguments.alternatives and len(texts) != 1:
        raise ValueError(f"--alternatives takes one text, but {len(texts)} are given: give one")
    if arguments.score is not None:
        if len(texts) > 1:
            raise ValueError(f"--score and {len(texts)} texts: give one, or two files as --input FILE --score FILE")
        if not texts:
            _require_readable(Path(arguments.score), " (without a text, --score takes a file of translations)")
        for option in ("alternatives", "prefix"):
            if arguments[option]:
                raise ValueError(f"--score and --{option} at once: give one of them")
    for option in ("input", "score"):
        if arguments.output and _is_same_file(arguments.output, arguments[option]):
            raise ValueError(f"--output {arguments.output} is the file of --{option}: give another name")
    if arguments.engine == "ctranslate2":
        _beyond_ctranslate2(arguments)


def _is_same_file(output: Path, other: Path | str | None) -> bool:
    return other is not None and output.exists() and Path(other).exists() and output.samefile(other)


def _require_readable(file: Path, hint: str = "") -> None:
    """Refuse what is neither a file nor a pipe, such as the shell's `<(...)`."""
    if file.is_dir():
        raise ValueError(f"{file} is a folder: give a file{hint}")
    if not file.exists():
        raise ValueError(f"no such file: {file}{hint}")


def _beside_links(arguments: Namespace) -> None:
    """Refuse what does not fit alignment links, which are those of the best translation of each line."""
    for option in ("alternatives", "score"):
        if arguments[option] is not None:
            raise ValueError(f"--format pharaoh and --{option} at once: give one of them")
    if arguments.n_best > 1:
        raise ValueError(f"--format pharaoh is a line per text, --n_best {arguments.n_best} several: give one of them")


def _beside_attention(arguments: Namespace) -> None:
    """Refuse what does not fit a picture of attention: one model, one text and one translation."""
    refuse_other_pictures(arguments.attention)
    if arguments.input:
        raise ValueError(f"--attention takes one text: give the text in place of --input {arguments.input}")
    if len(arguments.texts) != 1:
        raise ValueError(f"--attention takes one text, but {len(arguments.texts)} are given: give one")
    if len(arguments.run or []) > 1:
        raise ValueError(f"--attention takes one run, but {len(arguments.run)} are given: give one --run")


def _beyond_ctranslate2(arguments: Namespace) -> None:
    """Refuse what only our own search can do."""
    runs = arguments.run or []
    if len(runs) > 1:
        raise ValueError(
            f"--engine ctranslate2 and {len(runs)} runs: an ensemble needs --engine miyako; give one --run"
        )
    given = [option for option in ("sample", "alternatives", "alignment", "attention") if arguments[option]]
    given += ["format pharaoh"] if arguments.format == "pharaoh" else []
    if given:
        raise ValueError(f"--engine ctranslate2 and --{given[0]} at once: it needs --engine miyako; leave one out")
    sampling_config(arguments)  # refuses sampling options


def refuse_other_pictures(path: Path) -> None:
    """Refuse a file name whose extension is not one that attention can be drawn in."""
    if path.suffix not in PICTURES:
        raise ValueError(f"{path} is neither {' nor '.join(PICTURES)}: give the file one of these extensions")
