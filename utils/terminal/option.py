"""Command-line options for search and sampling."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from jsonargparse import ArgumentParser, Namespace

from utils.search.hypothesis import SearchConfig
from utils.search.sampling import SamplingConfig

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
