"""Command-line options for search, sampling and rescoring, and which of them contradict each other."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from jsonargparse import ArgumentParser, Namespace

from utils.command import require_options_at_least
from utils.search.constraint import SearchConfig
from utils.search.sampling import SamplingConfig

# Command-line options for search and sampling.

ConfigT = TypeVar("ConfigT", SearchConfig, SamplingConfig)

_RISK_SAMPLES = 32  # fewest candidates for a choice by risk, unless the user gives a number
# option -> field of `SearchConfig`
_SEARCH = {{"beam_size": "beam"}.get(field.name, field.name): field.name for field in fields(SearchConfig)}
# option -> field of `SamplingConfig`
SAMPLING = {"samples": "n_samples", "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "seed": "seed"}


def add_search_options(parser: ArgumentParser) -> None:
    """Add the options of search and sampling; those not given are None and leave the run's own settings."""
    search = parser.add_argument_group("search (default: the run's own settings)")
    search.add_argument("--beam", type=int, metavar="N", help="beam size; 1 is greedy search")
    search.add_argument("--length_penalty", type=float, metavar="A", help="larger values favour longer translations")
    search.add_argument(
        "--normalization",
        choices=["gnmt", "length"],
        help="divide scores by ((5 + length) / 6)^A (gnmt) or by length^A (length)",
    )
    search.add_argument(
        "--min_length", type=int, metavar="N", help="fewest tokens in a translation, if --max_ratio allows"
    )
    search.add_argument("--max_length", type=int, metavar="N", help="most tokens in a translation")
    search.add_argument("--min_ratio", type=float, metavar="R", help="fewest tokens per source token")
    search.add_argument("--max_ratio", type=float, metavar="R", help="most tokens per source token, plus 10")
    search.add_argument("--no_repeat_ngram", type=int, metavar="N", help="never repeat an n-gram of N tokens")
    search.add_argument(
        "--minimum_bayes_risk", action="store_true", help="choose the candidate that agrees most with the rest"
    )
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--sample", action="store_true", help="sample translations instead of searching for the best")
    add_sampling_options(sampling, "samples per text (default: --n_best; at least 32 with --minimum_bayes_risk)")


def add_sampling_options(group: Any, samples_help: str) -> None:
    """Add the options that change a `SamplingConfig` to a parser or an option group."""
    group.add_argument("--samples", type=int, metavar="N", help=samples_help)
    group.add_argument(
        "--temperature", type=float, metavar="T", help="softmax temperature; below 1 favours likely tokens (default: 1)"
    )
    group.add_argument("--top_k", type=int, metavar="K", help="sample from the K likeliest tokens (default: all)")
    group.add_argument(
        "--top_p",
        type=float,
        metavar="P",
        help="nucleus sampling: draw among the likeliest tokens whose probabilities sum to P (default: 1)",
    )
    group.add_argument("--seed", type=int, metavar="N", help="random seed (default: 1)")


def search_config(own: SearchConfig, arguments: Namespace, n_best: int = 1) -> SearchConfig:
    """Return a run's search settings with the given options applied and a beam of at least `n_best`.

    Raises:
        ValueError: a setting is out of range, or the given beam is too small.
    """
    changed = changed_by(own, _SEARCH, arguments)
    if arguments.sample:
        return changed
    if n_best > changed.beam_size:
        if arguments.beam is not None:
            raise ValueError(f"--beam {arguments.beam} is less than --n_best {n_best}: give --beam {n_best}")
        changed = replace(changed, beam_size=n_best)
    if arguments.minimum_bayes_risk and changed.beam_size == 1:
        raise ValueError("--minimum_bayes_risk has nothing to choose from: give e.g. --beam 8, or --sample")
    return changed


def sampling_config(arguments: Namespace, n_best: int = 1) -> SamplingConfig | None:
    """Return how to sample at least `n_best` translations; None without --sample.

    Raises:
        ValueError: a setting is out of range, a sampling option is given without --sample, or a beam with it.
    """
    if not arguments.sample:
        for option in SAMPLING:
            if arguments[option] is not None:
                raise ValueError(f"--{option} {arguments[option]} applies to sampling: add --sample")
        return None
    if arguments.beam is not None:
        raise ValueError(f"--sample and --beam {arguments.beam} at once: samples are drawn without a search; give one")
    n_samples = max(n_best, _RISK_SAMPLES) if arguments.minimum_bayes_risk else n_best
    sampling = changed_by(SamplingConfig(n_samples), SAMPLING, arguments)
    if sampling.n_samples < n_best:
        raise ValueError(f"--samples {sampling.n_samples} is less than --n_best {n_best}: give --samples {n_best}")
    return sampling


def changed_by(config: ConfigT, fields: Mapping[str, str], arguments: Namespace | Mapping[str, Any]) -> ConfigT:
    """Return the config with the given options applied; error messages name options in place of fields.

    Args:
        config: the settings to start from.
        fields: option -> the field it changes.
        arguments: value of each option; None: not given.

    Raises:
        ValueError: a setting is out of range.
    """
    given: dict[str, Any] = {
        field: arguments[option] for option, field in fields.items() if arguments[option] is not None
    }
    try:
        return replace(config, **given)
    except ValueError as error:
        message = str(error)
        for option, field in (*fields.items(), *_SEARCH.items(), *SAMPLING.items()):
            message = message.replace(f"{field}=", f"--{option} ")
        raise ValueError(message) from None


# Options of translate.py that contradict each other.

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
