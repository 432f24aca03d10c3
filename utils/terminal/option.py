"""The options of a command line that say how translations are looked for."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from jsonargparse import ArgumentParser, Namespace

from utils.search.hypothesis import SearchConfig
from utils.search.sampling import SamplingConfig

ConfigT = TypeVar("ConfigT", SearchConfig, SamplingConfig)

_RISK_SAMPLES = 32  # candidates that a choice by risk wants at least, where the user gives no number
_SEARCH = {"beam": "beam_size"} | {
    name: name
    for name in (
        "length_penalty",
        "normalization",
        "coverage_penalty",
        "min_length",
        "max_length",
        "min_ratio",
        "max_ratio",
        "no_repeat_ngram",
    )
}
# the fields of `SamplingConfig` by the options that change them
SAMPLING = {"samples": "n_samples", "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "seed": "seed"}


def add_search_options(parser: ArgumentParser) -> None:
    """Give a parser the options of search and sampling; what is not given is None, and stays as the run has it."""
    search = parser.add_argument_group("search (default: the run's own settings)")
    search.add_argument("--beam", type=int, metavar="N", help="beam width, 1 is greedy")
    search.add_argument("--length_penalty", type=float, metavar="A", help="larger prefers longer translations")
    search.add_argument(
        "--normalization",
        choices=["gnmt", "length"],
        help="the score is divided by ((5 + length) / 6)^A, or by length^A",
    )
    search.add_argument("--coverage_penalty", type=float, metavar="B", help="cost of leaving parts of the source out")
    search.add_argument(
        "--min_length", type=int, metavar="N", help="fewest tokens of a translation, if --max_ratio allows"
    )
    search.add_argument("--max_length", type=int, metavar="N", help="most tokens of a translation")
    search.add_argument("--min_ratio", type=float, metavar="R", help="fewest tokens for each of the source")
    search.add_argument("--max_ratio", type=float, metavar="R", help="most tokens for each of the source, plus 10")
    search.add_argument("--no_repeat_ngram", type=int, metavar="N", help="say no N tokens twice in a translation")
    search.add_argument(
        "--minimum_bayes_risk", action="store_true", help="take the candidate that agrees most with the others"
    )
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--sample", action="store_true", help="draw translations instead of looking for the best")
    add_sampling_options(sampling, "how many to draw (default: --n_best; 32 for --minimum_bayes_risk)")


def add_sampling_options(group: Any, samples_help: str) -> None:
    """Give a parser, or a group of its options, those that change a `SamplingConfig`."""
    group.add_argument("--samples", type=int, metavar="N", help=samples_help)
    group.add_argument("--temperature", type=float, metavar="T", help="below 1: the likely gets likelier (default: 1)")
    group.add_argument("--top_k", type=int, metavar="K", help="draw among the K likeliest tokens (default: all)")
    group.add_argument(
        "--top_p", type=float, metavar="P", help="draw among those that together have probability P (default: 1)"
    )
    group.add_argument("--seed", type=int, metavar="N", help="another one draws others (default: 1)")


def add_rescoring_options(parser: ArgumentParser) -> None:
    """Give a parser the options of a language model beside the translator."""
    rescoring = parser.add_argument_group("rescoring by a language model")
    rescoring.add_argument(
        "--rescore-with",
        type=str,
        metavar="RUN",
        help="choose among the beam's translations by a run of task language, which remembers those chosen before: "
        "lines are the sentences of a document, an empty one ends it",
    )
    rescoring.add_argument(
        "--rescore_weight",
        type=float,
        metavar="W",
        help="of its log-probabilities (default: what `evaluate.py rescore --save` has found)",
    )
    rescoring.add_argument(
        "--rescore_memory",
        type=int,
        metavar="M",
        help="tokens that it remembers; 0: each sentence by itself (default: as tuned, else as trained)",
    )


def refuse_rescoring(arguments: Namespace) -> None:
    """What makes no sense beside a language model, or without one.

    Raises:
        ValueError: such an option is given.
    """
    if arguments.rescore_with is None:
        for option in ("rescore_weight", "rescore_memory"):
            if arguments[option] is not None:
                raise ValueError(f"--{option} {arguments[option]} is of a language model: add --rescore-with RUN")
        return
    for option, remedy in (
        ("sample", "searched translations are rescored"),
        ("minimum_bayes_risk", "both order the candidates"),
        ("alternatives", "they show what the translator alone thinks"),
        ("score", "it shows what the translator alone thinks"),
    ):
        if arguments[option]:
            raise ValueError(f"--rescore-with and --{option} at once: {remedy}; give one of them")


def search_config(own: SearchConfig, arguments: Namespace, n_best: int = 1) -> SearchConfig:
    """The settings of a run, changed by what is given; wide enough for so many translations.

    Raises:
        ValueError: a setting with which nothing can be found, or a beam too narrow.
    """
    changed = changed_by(own, _SEARCH, arguments)
    if arguments.sample:
        return changed
    if n_best > changed.beam_size:
        if arguments.beam is not None:
            raise ValueError(f"--beam {arguments.beam} cannot find the {n_best} of --n_best: give --beam {n_best}")
        changed = replace(changed, beam_size=n_best)
    if arguments.minimum_bayes_risk and changed.beam_size == 1:
        raise ValueError("--minimum_bayes_risk has nothing to choose from: give --beam 8, say, or --sample")
    if arguments.get("rescore_with") and changed.beam_size == 1:
        raise ValueError("--rescore-with has nothing to choose from: give --beam 8, say")
    return changed


def sampling_config(arguments: Namespace, n_best: int = 1) -> SamplingConfig | None:
    """How to draw so many translations; None where they are searched.

    Raises:
        ValueError: a setting with which nothing can be drawn, or of sampling without --sample.
    """
    if not arguments.sample:
        for option in SAMPLING:
            if arguments[option] is not None:
                raise ValueError(f"--{option} {arguments[option]} is for drawn translations: add --sample")
        return None
    n_samples = max(n_best, _RISK_SAMPLES) if arguments.minimum_bayes_risk else n_best
    sampling = changed_by(SamplingConfig(n_samples), SAMPLING, arguments)
    if sampling.n_samples < n_best:
        raise ValueError(f"--samples {sampling.n_samples} are fewer than --n_best {n_best}: give --samples {n_best}")
    return sampling


def changed_by(config: ConfigT, fields: Mapping[str, str], arguments: Namespace | Mapping[str, Any]) -> ConfigT:
    """With what is given; complaints speak of options.

    Args:
        config: as it is where nothing is given.
        fields: those that options change, by the options' names.
        arguments: None where an option is not given.

    Raises:
        ValueError: a setting with which nothing can be found or drawn.
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
