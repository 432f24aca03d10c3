"""Options for search and sampling, and which options of translate.py contradict each other."""

import re
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from config.bound import Config
from config.reader import fields_of, texts_of
from config.search import SamplingConfig, SearchConfig
from config.training import Device, InferencePrecision
from const.path import EXPORTED, PICKLES
from utils.command import Namespace, Parser, option_of, require_options_at_least
from utils.dataset.cache import file_hash
from utils.dataset.formats import suffix_of
from utils.dataset.text import require_text
from utils.file import require_outputs

ConfigT = TypeVar("ConfigT", bound=Config)

# options of translate.py and serve.py, and of evaluate.py
MINIMUM_BAYES_RISK: Any = {
    "action": "store_true",
    "help": "choose the translation that is most like all that were found, each by its probability",
}
PRECISION: Any = {
    "choices": get_args(InferencePrecision),
    "default": "auto",
    "help": "of matrix products; auto: bf16, or else int8, where it is measured to be fast; int8: of linear layers on "
    "a CPU, all else in fp32; for single texts the fastest (default: auto)",
}
_RISK_SAMPLES = 32  # fewest candidates for a choice by risk, unless the user gives a number
_OTHER_NAMES = {"beam_size": "beam", "n_samples": "samples"}  # options that are not named like their field


def _options(config_type: type) -> dict[str, str]:
    return {_OTHER_NAMES.get(field, field): field for field in fields_of(config_type)}


SEARCH, SAMPLING = _options(SearchConfig), _options(SamplingConfig)  # option -> field


def add_settings(group: Any, config_type: type, **other_help: str) -> None:
    """Add an option for each setting, explained as in its dataclass or otherwise; None where it is not given."""
    for option, field in _options(config_type).items():
        type_, text = fields_of(config_type)[field], other_help.get(option, texts_of(config_type)[field].rstrip("."))
        if choices := get_args(type_):
            group.add_argument(option_of(option), choices=choices, help=text)
        elif type_ is bool:
            group.add_argument(option_of(option), type=_true_or_false, metavar="{true,false}", help=text)
        else:
            group.add_argument(option_of(option), type=type_, metavar="N" if type_ is int else "X", help=text)


def _true_or_false(text: str) -> bool:
    """Read whether something is on; `bool` would take "false" for true."""
    if text not in ("true", "false"):
        raise ArgumentTypeError(f"{text!r}: give true or false")
    return text == "true"


def add_model_options(parser: Parser, which: str) -> None:
    """Add the options of what translates, with a help text that says which run does."""
    model = parser.add_argument_group("model")
    model.add_argument("--run", action="append", help=which)
    text = "cpu, cuda, or auto: cuda if available (default: auto)"
    model.add_argument("--device", choices=get_args(Device), default="auto", help=text)
    model.add_argument("--precision", **PRECISION)


def add_search_options(parser: Parser) -> None:
    """Add the options of search and sampling; those not given leave the run's own settings."""
    search = parser.add_argument_group("search (default: the run's own settings)")
    add_settings(search, SearchConfig)
    search.add_argument("--minimum-bayes-risk", **MINIMUM_BAYES_RISK)
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--sample", action="store_true", help="draw translations instead of searching for the best")
    samples = "translations drawn per text (default: --n-best; at least 32 with --minimum-bayes-risk)"
    add_settings(sampling, SamplingConfig, samples=samples)


def changed_by(config: ConfigT, options: Mapping[str, str], arguments: Namespace | Mapping[str, Any]) -> ConfigT:
    """Return the config with the given ones (not None) of these options (option -> field) applied."""
    given = {field: arguments.get(option) for option, field in options.items()}
    try:
        return replace(config, **{field: value for field, value in given.items() if value is not None})
    except ValueError as error:  # it names fields, and the user gave options
        names = {field: option for option, field in {**SEARCH, **SAMPLING, **options}.items()}
        message = re.sub(r"\b(\w+)=", lambda name: f"{option_of(names.get(name[1], name[1]))} ", str(error))
        raise ValueError(message) from None


@dataclass(frozen=True)
class Options:
    """What is asked of translate.py; a path of None is standard input or output, or nothing."""

    texts: Sequence[str]
    input: Path | None
    output: Path | None
    tag: str | None
    pre_tokenized: bool
    run: Sequence[str] | None
    device: Device
    precision: InferencePrecision
    format: Literal["text", "jsonl", "pharaoh"]
    n_best: int
    log_probs: bool
    alignment: bool
    attention: Path | None
    explain: Path | None
    prefix: str
    glossary: Path | None
    alternatives: int | None
    score: str | None
    minimum_bayes_risk: bool
    sample: bool
    settings: Mapping[str, Any]  # of search and sampling, by their options; None where it is not given

    @classmethod
    def read(cls, arguments: Namespace) -> "Options":
        """Read parsed options; refuse those that make no sense together, before anything is loaded."""
        if str(arguments.input) == "-":  # the usual name of standard input
            arguments.input = None
        refuse_contradictions(arguments)
        # a text with line breaks is still one text
        arguments.texts = [" ".join(text.split("\n")) for text in arguments.texts]
        arguments.prefix = arguments.prefix or ""
        arguments.settings = {option: arguments[option] for option in (*SEARCH, *SAMPLING)}
        return cls(**{field.name: arguments[field.name] for field in fields(cls)})

    @property
    def keeps_ends(self) -> bool:
        """Whether lines of output are those of the input but for their texts: a byte order mark and CRLF stay."""
        return self.format == "text" and self.n_best == 1 and self.score is None

    def affecting_lines(self) -> dict[str, str]:
        """Return what the output for a line depends on besides the runs, by option: values, or the hash of a file."""
        given = {option_of(name): value for name, value in {**vars(self), **self.settings}.items()}
        for elsewhere in ("--input", "--output", "--run", "--settings"):
            del given[elsewhere]
        return {option: file_hash(x) if isinstance(x, Path) else str(x) for option, x in given.items()}


def search_configs(own: SearchConfig, options: Options) -> tuple[SearchConfig, SamplingConfig | None]:
    """Return a run's search settings, and how to sample, with the options applied and room for `--n-best`."""
    search, n_best, by_risk = changed_by(own, SEARCH, options.settings), options.n_best, options.minimum_bayes_risk
    if options.sample:
        n_samples = {"n_best": max(n_best, _RISK_SAMPLES) if by_risk else n_best}
        sampling = changed_by(SamplingConfig(), {"n_best": "n_samples"}, n_samples)
        sampling = changed_by(sampling, SAMPLING, options.settings)
        if sampling.n_samples < n_best:
            raise ValueError(f"--samples {sampling.n_samples} is less than --n-best {n_best}: give --samples {n_best}")
        return search, sampling
    if n_best > search.beam_size:
        if (beam := options.settings["beam"]) is not None:
            raise ValueError(f"--beam {beam} is less than --n-best {n_best}: give --beam {n_best}")
        search = changed_by(search, {"n_best": "beam_size"}, {"n_best": n_best})
    if by_risk:
        require_candidates(search, "--beam 8, or --sample")
    return search, None


def require_candidates(search: SearchConfig, remedy: str) -> None:
    """Refuse to choose by risk from what a greedy search finds."""
    if search.beam_size == 1:
        raise ValueError(f"--minimum-bayes-risk has nothing to choose from: give e.g. {remedy}")


SHAPED = re.compile(r"(?i).*\.(srt|po)(?:\.gz|\.xz)?")  # names of files of which only the texts are translated
_BY_LINE = "; to translate its lines all the same: --input - < FILE"
# ends of names of files that have more than texts, all of which would be translated; what to do
_OTHER_SHAPES = {
    ".doc .docx .epub .odt .pdf .pptx .rtf .xlsx": "save it as a .txt file",
    ".pot": "it is a template: copy it to a .po file, and give that",
    ".ass .ssa .sub .vtt": "convert it, for example with `ffmpeg -i FILE film.srt`" + _BY_LINE,
    ".htm .html .xhtml": "serve.py translates HTML" + _BY_LINE,
    ".xlf .xliff": "convert it with `xliff2po` of Translate Toolkit" + _BY_LINE,
    ".csv .ipynb .json .jsonl .md .rst .tex .toml .xml .yaml .yml": "give its texts as a .txt file" + _BY_LINE,
}

# What cannot be given at once (any of the first with any of the second), and what to do about it.
_CONTRADICTIONS = (
    ("texts", "--input", "give one of them"),
    ("file in shape", "--format jsonl, --format pharaoh, --n-best, --score", "its lines are no texts; leave one out"),
    ("--log-probs, --alignment", "--format text, --format pharaoh", "give --format jsonl"),
    ("--format pharaoh", "--alternatives, --score", "give one of them"),
    ("--format pharaoh", "--n-best", "it is a line per text; give one of them"),
    ("table", "--n-best", "it is of the best translation; leave one out, or give --format jsonl"),
    ("--attention, --explain, --alternatives", "no text, several texts", "give one text"),
    ("--attention, --explain", "several runs", "give one --run"),
    ("--explain", "--sample, --minimum-bayes-risk, --score", "it shows a beam search and its best; leave one out"),
    ("--score", "several texts", "give one text, or two files as --input FILE --score FILE"),
    ("--score", "--alternatives, --prefix, --n-best", "give one of them"),
    ("--glossary", "--sample, --score, --explain, exported run", "it needs a beam search; leave one out"),
    ("--sample", "--beam", "samples are drawn without a search; give one"),
    (", ".join(map(option_of, SAMPLING)), "a search", "add --sample"),
    ("exported run", "several runs", "an ensemble is of runs as they were trained; give one --run"),
    (
        "exported run",
        "--sample, --alternatives, --alignment, --attention, --explain, --format pharaoh",
        "it needs the run itself; leave one out",
    ),
)


def refuse_contradictions(arguments: Namespace) -> None:
    """Refuse options that make no sense together."""
    if arguments.input:
        require_text(arguments.input)
    require_options_at_least(arguments, n_best=1, alternatives=1)
    shape, wanted = (suffix_of(Path(path or "")) for path in (arguments.input, arguments.output))
    for shapes, remedy in _OTHER_SHAPES.items():
        if shape in shapes.split():
            raise ValueError(f"--input {arguments.input}: a {shape} file is not read: {remedy}")
    if wanted != shape and SHAPED.fullmatch(wanted):
        raise ValueError(f"--output {arguments.output}: give a {wanted} file as --input, or another extension")
    given = _given(arguments)
    for options, others, remedy in _CONTRADICTIONS:
        for option, other in product(options.split(", "), others.split(", ")):
            if option in given and other in given:
                raise ValueError(f"{given[option]} and {given[other]} at once: {remedy}")
    if arguments.engine and (arguments.engine == "ctranslate2") != ("exported run" in given):
        raise ValueError(f"--engine {arguments.engine}: it depends on --run, which is of the other kind; leave it out")
    require_extension(arguments, "attention", ".html", ".png")
    require_extension(arguments, "explain", ".html")
    if arguments.output is not None and arguments.output.suffix in (".gz", ".xz"):
        raise ValueError(
            f"--output {arguments.output}: it would not be compressed: leave out {arguments.output.suffix}"
        )
    if arguments.score is not None and not arguments.texts:
        require_text(Path(arguments.score), "without a text, a file of translations is needed, but --score")
    score = None if arguments.score is None or arguments.texts else Path(arguments.score)
    outputs = {f"--{name}": arguments[name] for name in ("output", "attention", "explain")}
    require_outputs(outputs, {"--input": arguments.input, "--score": score, "--glossary": arguments.glossary})


def require_extension(arguments: Namespace, option: str, *known: str) -> None:
    """Refuse a file whose extension says nothing of what to draw."""
    if arguments[option] is not None and arguments[option].suffix not in known:
        raise ValueError(f"--{option} {arguments[option]}: give the file the extension {' or '.join(known)}")


def _given(arguments: Namespace) -> dict[str, str]:
    """Return how to show what is given, by its name in the table of contradictions."""
    n_texts, n_runs = len(arguments.texts), len(arguments.run or [])
    given = {f"--format {arguments.format}": f"--format {arguments.format}"}
    for name in arguments.run or []:
        if any((folder / EXPORTED).is_file() for folder in (Path(name), PICKLES / name)):
            given["exported run"] = f"--run {name} (for CTranslate2)"
    for option, value in vars(arguments).items():
        if value is not None and value is not False and (option, value) != ("n_best", 1):
            shown = option_of(option)
            given[shown] = shown if value is True else f"{shown} {value}"
    given |= {"no text": "no text"} if n_texts == 0 else {"texts": "texts"}
    given |= {"file in shape": given["--input"]} if SHAPED.fullmatch(str(arguments.input)) else {}
    given |= {"table": given["--alternatives"]} if arguments.alternatives and arguments.format == "text" else {}
    given |= {"several texts": f"{n_texts} texts"} if n_texts > 1 else {}
    given |= {"several runs": f"{n_runs} runs"} if n_runs > 1 else {}
    return given if arguments.sample else given | {"a search": "a search"}
