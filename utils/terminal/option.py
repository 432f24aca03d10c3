"""Options for search and sampling, and which options of translate.py contradict each other."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from config.search import SamplingConfig, SearchConfig
from utils.command import Namespace, Parser, require_options_at_least

ConfigT = TypeVar("ConfigT", SearchConfig, SamplingConfig)

PICTURES = (".html", ".png")  # the formats attention can be drawn in
_RISK_SAMPLES = 32  # fewest candidates for a choice by risk, unless the user gives a number
_OTHER_NAMES = {"beam_size": "beam", "n_samples": "samples"}  # options that are not named like their field


def _options(config_type: type[SearchConfig] | type[SamplingConfig]) -> dict[str, str]:
    return {_OTHER_NAMES.get(field.name, field.name): field.name for field in fields(config_type)}


SEARCH, SAMPLING = _options(SearchConfig), _options(SamplingConfig)  # option -> field


def add_search_options(parser: Parser) -> None:
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


def changed_by(config: ConfigT, options: Mapping[str, str], arguments: Namespace | Mapping[str, Any]) -> ConfigT:
    """Return the config with the given ones (not None) of these options (option -> field) applied."""
    given = {field: arguments.get(option) for option, field in options.items()}
    try:
        return replace(config, **{field: value for field, value in given.items() if value is not None})
    except ValueError as error:  # it speaks of fields, and the user gave options
        message = str(error)
        for option, field in (*options.items(), *SEARCH.items(), *SAMPLING.items()):
            message = message.replace(f"{field}=", f"--{option} ")
        raise ValueError(message) from None


def search_config(own: SearchConfig, arguments: Namespace, n_best: int = 1) -> SearchConfig:
    """Return a run's search settings with the given options applied and a beam of at least `n_best`."""
    changed = changed_by(own, SEARCH, arguments)
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
    """Return how to sample at least `n_best` translations; None without --sample."""
    if not arguments.sample:
        return None
    n_samples = max(n_best, _RISK_SAMPLES) if arguments.minimum_bayes_risk else n_best
    sampling = changed_by(SamplingConfig(n_samples), SAMPLING, arguments)
    if sampling.n_samples < n_best:
        raise ValueError(f"--samples {sampling.n_samples} is less than --n_best {n_best}: give --samples {n_best}")
    return sampling


# What cannot be given at once, and what to do about it.
_CONTRADICTIONS = (
    ("texts", "--input", "give one of them"),
    ("--log_probs", "--format text", "give --format jsonl"),
    ("--log_probs", "--format pharaoh", "give --format jsonl"),
    ("--alignment", "--format text", "give --format jsonl"),
    ("--alignment", "--format pharaoh", "give --format jsonl"),
    ("--format pharaoh", "--alternatives", "give one of them"),
    ("--format pharaoh", "--score", "give one of them"),
    ("--format pharaoh", "--n_best", "it is a line per text; give one of them"),
    ("--attention", "--input", "give one text"),
    ("--attention", "no text", "give one text"),
    ("--attention", "several texts", "give one text"),
    ("--attention", "several runs", "give one --run"),
    ("--alternatives", "no text", "give one text"),
    ("--alternatives", "several texts", "give one text"),
    ("--score", "several texts", "give one text, or two files as --input FILE --score FILE"),
    ("--score", "--alternatives", "give one of them"),
    ("--score", "--prefix", "give one of them"),
    ("--sample", "--beam", "samples are drawn without a search; give one"),
    *((f"--{option}", "a search", "add --sample") for option in SAMPLING),
    ("--engine ctranslate2", "several runs", "an ensemble needs --engine miyako; give one --run"),
    *(
        ("--engine ctranslate2", option, "it needs --engine miyako; leave one out")
        for option in ("--sample", "--alternatives", "--alignment", "--attention", "--format pharaoh")
    ),
)


def refuse_contradictions(arguments: Namespace) -> None:
    """Refuse options that make no sense together, before anything is loaded."""
    if arguments.input:
        _require_readable(arguments.input)
    require_options_at_least(arguments, n_best=1, alternatives=1)
    given = _given(arguments)
    for option, other, remedy in _CONTRADICTIONS:
        if option in given and other in given:
            raise ValueError(f"{given[option]} and {given[other]} at once: {remedy}")
    if arguments.attention is not None:
        refuse_other_pictures(arguments.attention)
    if arguments.score is not None and not arguments.texts:
        _require_readable(Path(arguments.score), " (without a text, --score takes a file of translations)")
    for option in ("input", "score"):
        if arguments.output and _is_same_file(arguments.output, arguments[option]):
            raise ValueError(f"--output {arguments.output} is the file of --{option}: give another name")


def _given(arguments: Namespace) -> dict[str, str]:
    """Return what is given, by its name in the table of contradictions, and how to show it."""
    n_texts, n_runs = len(arguments.texts), len(arguments.run or [])
    found = {
        f"--{option}": f"--{option}" if value is True else f"--{option} {value}"
        for option, value in vars(arguments).items()
        if value is not None and value is not False and (option, value) != ("n_best", 1)
    }
    for option in ("format", "engine"):
        found[f"--{option} {arguments[option]}"] = f"--{option} {arguments[option]}"
    circumstances = {
        "texts": n_texts > 0,
        "no text": n_texts == 0,
        "several texts": n_texts > 1,
        "several runs": n_runs > 1,
        "a search": not arguments.sample,
    }
    counted = {"several texts": f"{n_texts} texts", "several runs": f"{n_runs} runs"}
    return found | {name: counted.get(name, name) for name, holds in circumstances.items() if holds}


def _is_same_file(output: Path, other: Path | str | None) -> bool:
    return other is not None and output.exists() and Path(other).exists() and output.samefile(other)


def _require_readable(file: Path, hint: str = "") -> None:
    """Refuse what is neither a file nor a pipe, such as the shell's `<(...)`."""
    if file.is_dir():
        raise ValueError(f"{file} is a folder: give a file{hint}")
    if not file.exists():
        raise ValueError(f"no such file: {file}{hint}")


def refuse_other_pictures(path: Path) -> None:
    """Refuse a file name whose extension is not one that attention can be drawn in."""
    if path.suffix not in PICTURES:
        raise ValueError(f"{path} is neither {' nor '.join(PICTURES)}: give the file one of these extensions")
