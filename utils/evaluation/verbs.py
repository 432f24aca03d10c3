"""The verbs of evaluate.py: score a run, files, heads, alignments or minimal pairs, compare, tune, draw curves."""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from tqdm import tqdm

from config.data import require_language
from config.training import Device
from utils.command import Namespace, aligned, print_above_bars, require_options_at_least
from utils.config import TranslationConfig
from utils.dataset.text import ParallelText, read_lines, read_parallel, require_text
from utils.evaluation.analysis import Contrast, Evaluation, ReferenceText
from utils.evaluation.metric import (
    PUBLISHED_TEST,
    TOKENIZERS,
    Comparison,
    System,
    Test,
    bleu_tokenizer,
    build_metrics,
    compare,
    corpus_metrics,
    fitting_tokenizer,
    measure,
    moses_words,
    multi_bleu,
    refuse_samples,
)
from utils.evaluation.report import as_dict, as_text, charts, write_html
from utils.file import require_outputs, require_writable, write_json, write_lines
from utils.run import CONFIG, KEPT_WEIGHTS, TRANSLATIONS, distinct_names, find_run, read_config
from utils.terminal.option import MINIMUM_BAYES_RISK, PRECISION, changed_by, require_candidates
from utils.text.language import looks_tokenized, refuse_other_language, refuse_same

if TYPE_CHECKING:
    from utils.dataset.corpus import Corpus
    from utils.load import Run

N_BOOTSTRAP = 1000  # as in sacreBLEU's command line


def warn(message: str) -> None:
    """Print a warning for the reader of a score on standard error."""
    print(f"evaluate.py: warning: {message}", file=sys.stderr)


class RunText(NamedTuple):
    """A run and a text of the corpus that it was trained on, with its description."""

    run: "Run"
    corpus: "Corpus"
    pairs: ParallelText
    name: str


def read_run_text(arguments: Namespace) -> RunText:
    """Load the run, and read a held-out set of its corpus, or the first sentences of it."""
    require_options_at_least(arguments, limit=1)
    folder = find_run(arguments.run)
    # only now: torch takes seconds to import, which neither --help nor a mistake should wait for
    from utils.dataset.corpus import prepare_to_score
    from utils.device import pick_device
    from utils.load import load_run
    from utils.memory import keep_freed_memory

    keep_freed_memory()
    run = load_run(folder, pick_device(arguments.device), tag=arguments.tag)
    corpus = prepare_to_score(run.config.data, split=arguments.split)
    pairs = read_parallel(corpus.held_out(arguments.split))[: arguments.limit]
    part = f", first {len(pairs)} sentences" if arguments.limit else ""
    tag = "" if arguments.tag is None else f", tag {arguments.tag or 'none'}"
    name = f"{corpus.name} {arguments.split}, {'-'.join(corpus.data.languages)}{tag}{part}"
    return RunText(run, corpus, pairs, name)


def report_score(system: System, text: ReferenceText, arguments: Namespace) -> None:
    """Score a single system, and report."""
    metrics = build_metrics(text.tgt_lang, text.tokenize)
    found = measure(system.translations, text.references, metrics, arguments.bootstrap)
    report([text.evaluation(system, found)], [], arguments)


def report(
    evaluations: Sequence[Evaluation],
    comparisons: Sequence[Comparison],
    arguments: Namespace,
    contrasts: Sequence[Contrast] = (),
) -> None:
    """Print the results, and write them to the requested files."""
    print(as_text(evaluations, comparisons).rstrip("\n"))
    if arguments.json:
        write_json(arguments.json, as_dict(evaluations, comparisons, contrasts))
    if arguments.html:
        write_html(evaluations, comparisons, arguments.html, contrasts)


# run: scores of a run on a text of its own corpus


def evaluate_run(arguments: Namespace) -> None:
    """Translate a text of a run's own corpus with the run, and score the translations."""
    run, corpus, pairs, name = read_run_text(arguments)
    search = changed_by(run.config.search, {"beam": "beam_size", "length_penalty": "length_penalty"}, arguments)
    refuse_samples(arguments.bootstrap, len(pairs), "--bootstrap")
    if by_risk := arguments.minimum_bayes_risk:
        require_candidates(search, "--beam 8")
    translator = replace(run.translator(search, arguments.precision), minimum_bayes_risk=by_risk)
    with tqdm(total=len(pairs), desc="translating", unit="sentence", disable=None, leave=False) as bar:
        found = translator.translate(pairs.src, bar.update)
    if n_unknown := sum(translation.unknown for translation in found):
        warn(f"{n_unknown} of {len(found)} sources are entirely outside the vocabulary and were left unchanged")
    translations = [translation.text for translation in found]
    if arguments.translations:
        write_lines(arguments.translations, translations)
    data = corpus.data
    tokenize = bleu_tokenizer(data.tgt_lang, data.is_tokenized)
    text = ReferenceText(name, data.tgt_lang, tokenize, pairs.src, pairs.tgt, training_text(run))
    system = f"{run.folder.resolve().name}, beam {search.beam_size}, length penalty {search.length_penalty:g}"
    system += f", {arguments.precision}" if arguments.precision != "auto" else ""
    system += ", minimum Bayes risk" if by_risk else ""
    report_score(System(system, translations), text, arguments)


def training_text(run: "Run") -> Path | None:
    """Return the target side of the text that a run was trained on, or None, with a warning, where it is gone."""
    from utils.dataset.corpus import prepare_corpus

    try:
        return prepare_corpus(run.config.data).train.tgt
    except ValueError as problem:
        warn(f"no F1 by word frequency, which needs the training text: {problem}")
        return None


# file and compare: scores of translations from any system against references


def evaluate_file(arguments: Namespace) -> None:
    """Score a file of translations."""
    text, (system,) = read_text(arguments, {"TRANSLATIONS": arguments.translations})
    report_score(system, text, arguments)


def compare_files(arguments: Namespace) -> None:
    """Score files of translations, and test whether they differ significantly from a baseline."""
    if arguments.test == "bootstrap" and arguments.bootstrap is not None:
        wrong = f"--bootstrap {arguments.bootstrap} and --test bootstrap at once"
        raise ValueError(f"{wrong}: the intervals come from the samples of the test; give --samples")
    n_bootstrap = N_BOOTSTRAP if arguments.bootstrap is None else arguments.bootstrap
    files = {"BASELINE": arguments.baseline} | {f"SYSTEM {i}": file for i, file in enumerate(arguments.systems, 1)}
    text, systems = read_text(arguments, files)
    metrics = build_metrics(text.tgt_lang, text.tokenize)
    scores, comparisons = compare(systems, text.references, metrics, arguments.test, arguments.samples, n_bootstrap)
    evaluations = [text.evaluation(system, found) for system, found in zip(systems, scores, strict=True)]
    contrasts = [text.contrast(systems[0], other) for other in systems[1:] if arguments.html or arguments.json]
    report(evaluations, comparisons, arguments, contrasts)
    if arguments.picture:
        draw_bleu_by_length(evaluations, arguments.picture)


def draw_bleu_by_length(evaluations: Sequence[Evaluation], picture: Path) -> None:
    """Draw BLEU against the length of the sentences, with a line for each system, as a PNG."""
    from utils.visualize.curve import sheet

    chart = charts(evaluations)[0]
    labels = {label: f"{label.split()[0]}\n{groups[0][1].count:,}" for label, groups in chart.rows.items()}
    with sheet(picture, (8, 4.5), dpi=120) as (axes,):
        for place, evaluation in enumerate(evaluations):
            line = [(labels[label], group.score) for label, of in chart.rows.items() for i, group in of if i == place]
            axes.plot(*zip(*line, strict=True), "o-", label=Path(evaluation.system).stem)
        unit = next(iter(chart.rows)).partition(" ")[2]
        axes.set(
            ylim=(0, None),
            title=chart.title,
            xlabel=f"{unit} of a sentence\n(below: number of sentences)",
            ylabel=chart.measure,
        )
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)


def read_text(arguments: Namespace, files: dict[str, Path]) -> tuple[ReferenceText, list[System]]:
    """Read references, translations and other given texts; refuse texts whose score would be meaningless."""
    if arguments.tgt_lang is None:
        raise ValueError("--tgt-lang is missing: give the language of the translations, such as --tgt-lang en")
    require_language(tgt_lang=arguments.tgt_lang)
    given = {"REFERENCES": arguments.references} | {role: found_translations(path) for role, path in files.items()}
    if arguments.sources:
        given["--sources"] = arguments.sources
    lines = dict(zip(given, read_aligned(list(given.values())), strict=True))
    if not arguments.force:
        refuse_same({f"{role} {given[role]}": lines[role] for role in given})
        for role in ("REFERENCES", *files):
            remedy = "wrong file, or wrong --tgt-lang? (--force scores it anyway)"
            refuse_other_language(lines[role], arguments.tgt_lang, f"{role} {given[role]}", remedy)
    tokenize = fitting_tokenizer(arguments.tgt_lang, arguments.pre_tokenized, arguments.tokenize, arguments.force)
    for role in ("REFERENCES", *files):
        if tokenize != "none" and looks_tokenized(lines[role]):
            warn(f"{given[role]} looks tokenized: give --pre-tokenized if spaces separate all words and marks")
    if arguments.training_text:
        require_text(arguments.training_text)
    texts = lines.get("--sources", []), lines["REFERENCES"], arguments.training_text
    text = ReferenceText(str(arguments.references), arguments.tgt_lang, tokenize, *texts)
    return text, [System(str(path), lines[role]) for role, path in files.items()]


def found_translations(path: Path) -> Path:
    """Return a file of translations: the path itself, or what a run, by folder or name, made of its test text."""
    if not path.is_file():
        with suppress(ValueError):  # no run either: reading it will say that there is no such file
            path = find_run(path)
    if not path.is_dir():
        return path
    if not (path / TRANSLATIONS).is_file():
        raise ValueError(
            f"{path} has no {TRANSLATIONS}, which a finished training leaves: give a file of translations; "
            f"`python evaluate.py run {path} --translations FILE` writes one"
        )
    return path / TRANSLATIONS


def read_aligned(files: Sequence[Path]) -> list[list[str]]:
    """Read texts that correspond line by line."""
    texts = [read_lines(file) for file in files]
    for file, lines in zip(files, texts, strict=True):
        if len(lines) != len(texts[0]):
            raise ValueError(
                f"{files[0]} has {len(texts[0]):,} lines but {file} has {len(lines):,}: "
                "line i of one must correspond to line i of the other"
            )
    return texts


def refuse_overwriting(arguments: Namespace) -> None:
    """Refuse output files that are one another, or an input."""
    names = {name: name.removeprefix("--").replace("-", "_") for name in VERBS[arguments.verb][1].split()}
    given = {name: arguments[option] for name, option in names.items() if ARGUMENTS[name].get("type") is Path}
    for name in ("systems", "runs"):
        given |= {f"{name} {i}": path for i, path in enumerate(given.pop(name, []), 1)}
    outputs = {name: given.pop(name) for name in _OUTPUTS if name in given}
    require_outputs(outputs, given)


# tune: the beam size and length penalty that translate best


class Tried(NamedTuple):
    """The result of one setting."""

    beam_size: int
    length_penalty: float
    bleu: float
    length_ratio: float  # tokens of the translations over tokens of the references, as BLEU counts them


def tune(arguments: Namespace) -> None:
    """Find the beam size and length penalty that translate the dev set best."""
    run, corpus, pairs, name = read_run_text(arguments)
    if arguments.save:
        require_writable(run.folder, "leave out --save")
    options = {"beams": "beam_size", "length_penalties": "length_penalty"}
    tried = [dict(zip(options, values, strict=True)) for values in product(*(arguments[option] for option in options))]
    searches = [changed_by(run.config.search, options, values) for values in tried]  # refuses values out of range
    translator, bleu, trials = run.translator(), corpus_metrics(corpus)["BLEU"], list[Tried]()
    print(f"{run.folder.resolve().name}, {name}\n\n  beam  length penalty   BLEU  length ratio")
    with tqdm(total=len(searches) * len(pairs), unit="sentence", disable=None, leave=False) as bar:
        for search in searches:
            if not trials or search.beam_size > 1 or trials[-1].beam_size > 1:  # no penalty changes greedy search
                translator.search = search
                found = [translation.text for translation in translator.translate(pairs.src, bar.update)]
                score = bleu.corpus_score(found, [pairs.tgt])
            else:
                bar.update(len(pairs))
            trials.append(trial := Tried(search.beam_size, search.length_penalty, score.score, score.ratio))
            shown = f"{trial.bleu:>5.2f}  {trial.length_ratio:>12.3f}"
            print_above_bars(f"{trial.beam_size:>6}  {trial.length_penalty:>14g}  {shown}")
    best = max(trials, key=lambda trial: (trial.bleu, -trial.beam_size))
    print(f"\nbest: --beam {best.beam_size} --length-penalty {best.length_penalty:g}   {bleu.get_signature()}")
    if arguments.json:
        about = {"run": run.folder.resolve().name, "text": name, "signature": str(bleu.get_signature())}
        write_json(arguments.json, {**about, "trials": [trial._asdict() for trial in trials]})
    if arguments.picture:
        draw_beam_width(trials, name, arguments.picture)
    if arguments.save:
        search = replace(run.config.search, beam_size=best.beam_size, length_penalty=best.length_penalty)
        replace(run.config, search=search).save(run.folder / CONFIG)
        print(f"saved in {run.folder / CONFIG}")


def draw_beam_width(trials: Sequence[Tried], text: str, picture: Path) -> None:
    """Draw BLEU and length of a text against beam size, with a line for each length penalty, as a PNG."""
    from matplotlib.ticker import ScalarFormatter

    from utils.visualize.curve import sheet

    with sheet(picture, (10, 4), columns=2, dpi=120) as (quality, length):
        for penalty in sorted({trial.length_penalty for trial in trials}):
            line = sorted((t for t in trials if t.length_penalty == penalty), key=lambda trial: trial.beam_size)
            for axes, heights in ((quality, [t.bleu for t in line]), (length, [t.length_ratio for t in line])):
                axes.plot([t.beam_size for t in line], heights, "o-", ms=3, label=f"length penalty {penalty:g}")
        quality.set(title=f"BLEU of {text}", ylabel="BLEU")
        length.set(title="Length", ylabel="length of translations / of references")
        length.axhline(1, color="black", lw=0.8, ls=":")
        for axes in (quality, length):
            axes.set_xscale("log", base=2)
            axes.set(xlabel="beam width")
            axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.grid(alpha=0.3)
        quality.legend(frameon=False)


# heads, alignments, pairs and curves


def weigh_heads(arguments: Namespace) -> None:
    """Switch off the attention heads one at a time: how much the loss rises without each, and how widely it attends."""
    from utils.device import pick_device
    from utils.evaluation.probe import draw_head_importance, head_importance, importance_table, text_batches

    run, _, pairs, name = read_run_text(arguments)
    found = head_importance(run.transformer, text_batches(pairs, run.tokenizers, pick_device(arguments.device)))
    title = f"{run.folder.resolve().name}, {name}"
    print("\n".join([title, "", *importance_table(found)]))
    if arguments.picture:
        draw_head_importance(found, title, arguments.picture)
    if arguments.json:
        heads = [head._asdict() for head in found.heads]
        write_json(arguments.json, {"run": run.folder.resolve().name, "text": name, "loss": found.loss, "heads": heads})


def score_alignments(arguments: Namespace) -> None:
    """Score the word alignments that a run's cross-attention finds in given translations against gold alignments."""
    files = [arguments.gold, arguments.sources, arguments.references]
    if None in files:
        raise ValueError("--gold, --sources and --references belong together: give all three")
    lines, src, tgt = read_aligned(files)
    folder = find_run(arguments.run)
    data = read_config(folder, TranslationConfig).data
    for text, file, language in ((src, files[1], data.src_lang), (tgt, files[2], data.tgt_lang)):
        refuse_other_language(text, language, str(file), "wrong file, or a run of the other direction?")
    from utils.device import pick_device
    from utils.evaluation.probe import draw_error_rates, parse_gold, score_heads
    from utils.load import load_run

    golds = [
        parse_gold(f"{arguments.gold}, line {number}", line, *(len(side.split()) for side in sides))
        for number, (line, *sides) in enumerate(zip(lines, src, tgt, strict=True), 1)
    ]
    run = load_run(folder, pick_device(arguments.device))
    scores, left_out = score_heads(run, (src, tgt), golds, arguments.layer)
    best, title = min(scores, key=lambda one: one.aer), f"{folder.resolve().name}, {arguments.gold.name}"
    rows = [[str(layer), str(head), *(f"{100 * share:.1f}" for share in shares)] for layer, head, *shares in scores]
    print(f"{title}: {len(golds) - left_out:,} sentences, {left_out:,} left out; in %\n")
    print(*aligned([["layer", "head", "AER", "precision", "recall"], *rows], "rrrrr"), sep="\n")
    print(f"\nbest: layer {best.layer}, head {best.head}")
    if arguments.picture:
        draw_error_rates(scores, title, arguments.picture)
    if arguments.json:
        found = {"left_out": left_out, "best": best._asdict(), "scores": [one._asdict() for one in scores]}
        write_json(arguments.json, {"run": folder.resolve().name, "gold": str(arguments.gold), **found})


def score_pairs(arguments: Namespace) -> None:
    """Compare how likely runs of the demo's corpus find a right translation, and one that is wrong in one thing."""
    folders = [find_run(run) for run in arguments.runs]
    distinct_names(folders)
    for folder in folders:
        data = read_config(folder, TranslationConfig).data
        if data.has_own_text or (data.corpus, data.src_lang, data.tgt_lang) != ("embedded", "ja", "en"):
            corpus = "files" if data.has_own_text else data.corpus
            raise ValueError(
                f"{folder} learned corpus={corpus}, {data.src_lang} to {data.tgt_lang}; the pairs are of "
                "corpus=embedded, ja to en: give a run of `python train.py --config demo`"
            )
        if arguments.picture and len([*(folder / KEPT_WEIGHTS).glob("*")]) < 2:
            raise ValueError(
                f"{folder / KEPT_WEIGHTS} has fewer than two validations to draw: leave out --picture, or train with "
                "--checkpoint.keep_best 50"
            )
    from utils.dataset.embedded import minimal_pairs
    from utils.device import pick_device
    from utils.evaluation.probe import CHANCE, draw_pair_courses, pair_course, pair_table
    from utils.load import load_run

    pairs, device = minimal_pairs(), pick_device(arguments.device)
    courses = [pair_course(load_run(folder, device), pairs) for folder in folders]
    print("right translation likelier than the wrong one, % of the pairs", *pair_table(courses, pairs), sep="\n")
    if arguments.picture:
        draw_pair_courses(courses, arguments.picture)
    if arguments.json:
        counts = {name: len(of_one) for name, of_one in pairs.items()}
        write_json(arguments.json, {"pairs": counts, "chance": CHANCE, "runs": [one._asdict() for one in courses]})


def curves(arguments: Namespace) -> None:
    """Draw loss, dev scores, learning rate and gradient norm of one run, or of several overlaid."""
    if arguments.picture is None:
        raise ValueError("--picture is missing: give the PNG file to write")
    from utils.training.report import LOG
    from utils.visualize.curve import draw_runs

    draw_runs([find_run(run, having=LOG) for run in arguments.runs], arguments.picture)


# nymwa: scores by the protocol of nymwa/kftt_jaen_example


def score_as_nymwa(arguments: Namespace) -> None:
    """Score as nymwa/kftt_jaen_example does: multi-bleu.perl of lower-cased tokens."""
    ours, theirs = arguments.translations, arguments.references
    translations, references = read_aligned([ours, theirs])
    if not arguments.force:
        refuse_same({f"TRANSLATIONS {ours}": translations, f"REFERENCES {theirs}": references})
    if (len(references), sum(len(line.split()) for line in references)) != PUBLISHED_TEST:
        n_lines, n_words = PUBLISHED_TEST
        warn(
            f"{theirs} is not tok/kyoto-test.en of KFTT ({n_lines:,} lines, {n_words:,} words): "
            "the score is not comparable with scores on the test set"
        )
    if arguments.plain:
        translations = moses_words(translations)
    elif looks_tokenized(references) and not looks_tokenized(translations):
        warn(
            f"{ours} is not tokenized, but {theirs} is: "
            "every word before a full stop or comma counts as wrong; give --plain to tokenize it"
        )
    print(multi_bleu(translations, references))


_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
_LIST: dict[str, Any] = {"nargs": "+", "metavar": "N"}
# argument -> how it is parsed
ARGUMENTS: dict[str, dict[str, Any]] = {
    "--split": {
        "metavar": "NAME",
        "help": "held-out text of the run's corpus: dev, test, or a further one such as KFTT's tune or Multi30k's "
        "test_2017_flickr; a name that it does not have lists those that it has (default: %(default)s)",
    },
    "--picture": {**_FILE, "help": "draw the results to this PNG file; of compare: BLEU by length"},
    "--bootstrap": {"type": int, "metavar": "N", "help": "resamples for 95 %% intervals; 0: no intervals"},
    "run": {"nargs": "?", "type": Path, "help": "folder or name of a run (default: the one trained last)"},
    "runs": {"nargs": "+", "type": Path, "metavar": "RUN", "help": "folder or name of a run"},
    "translations": {"type": Path, "help": "translations, one per line, UTF-8; or the folder of a run"},
    "references": {"type": Path, "help": "reference translations, one per line, UTF-8; of nymwa: tok/kyoto-test.en"},
    "baseline": {"type": Path, "help": "translations of the baseline system, or its run's folder"},
    "systems": {"nargs": "+", "type": Path, "help": "those of the other systems, one file or folder each"},
    "--limit": {"type": int, "metavar": "N", "help": "read only the first N sentences"},
    "--device": {"choices": get_args(Device), "default": "auto", "help": "cpu, cuda, or auto: cuda if available"},
    "--tag": {
        "metavar": "TAG",
        "help": "kind of the texts, by a tag of the run's vocabulary, such as law; '': none (default: the run's own)",
    },
    "--beam": {"type": int, "metavar": "N", "help": "beam size; 1 is greedy search (default: the run's)"},
    "--length-penalty": {"type": float, "metavar": "A", "help": "larger favours longer (default: the run's)"},
    "--minimum-bayes-risk": MINIMUM_BAYES_RISK,
    "--precision": PRECISION,
    "--translations": {**_FILE, "help": "also write the translations to this file"},
    "--beams": {**_LIST, "type": int, "default": [1, 2, 4, 8], "help": "to try (default: 1 2 4 8)"},
    "--length-penalties": {**_LIST, "type": float, "default": [0, 0.6, 1, 1.4], "help": "default: 0 0.6 1 1.4"},
    "--save": {"action": "store_true", "help": "save the best values as the run's own settings"},
    "--tgt-lang": {"metavar": "CODE", "help": "language of the translations: en, ja, ...; required"},
    "--sources": {**_FILE, "help": "source sentences, shown in the report; of alignments: words separated by spaces"},
    "--references": {**_FILE, "help": "their translations, words separated by spaces"},
    "--gold": {**_FILE, "help": "links per pair: i-j, S-i-j sure; P-i-j, ipj possible; i: source word, from 0"},
    "--layer": {"type": int, "metavar": "N", "help": "only this decoder layer, counted from 1 (default: all)"},
    "--training-text": {**_FILE, "help": "target side, for F1 by word frequency"},
    "--pre-tokenized": {"action": "store_true", "help": "words are separated by spaces in both files"},
    "--tokenize": {"metavar": "NAME", "choices": list(TOKENIZERS), "help": "default: that of the language"},
    "--force": {"action": "store_true", "help": "score even if the texts look wrong"},
    "--test": {"choices": list(get_args(Test)), "default": "bootstrap", "help": "significance test"},
    "--samples": {"type": int, "metavar": "N", "help": "default: 1000 for bootstrap, 10000 for randomization"},
    "--plain": {"action": "store_true", "help": "tokenize the translations first, as Moses does"},
    "--json": {**_FILE, "help": "write the results to this file as JSON"},
    "--html": {**_FILE, "help": "write the report to this file as an HTML page"},
    "--seed": {"type": int, "metavar": "N", "help": "of the samples (default: SACREBLEU_SEED or sacreBLEU's)"},
}
_RUN_TEXT = "run --split --tag --limit --device"
_OUTPUTS = ("--translations", "--json", "--html", "--picture")
_TEXT = "--tgt-lang --sources --training-text --pre-tokenized --tokenize --force"
_REPORT = "--json --html --bootstrap --seed"
# verb -> what does it, whose docstring is its help; its arguments, and their defaults
VERBS: dict[str, tuple[Callable[[Namespace], None], str, dict[str, Any]]] = {
    "run": (
        evaluate_run,
        f"{_RUN_TEXT} --precision --beam --length-penalty --minimum-bayes-risk --translations {_REPORT}",
        {"split": "test", "bootstrap": N_BOOTSTRAP},
    ),
    "tune": (tune, f"{_RUN_TEXT} --beams --length-penalties --save --picture --json", {"split": "dev"}),
    "heads": (weigh_heads, f"{_RUN_TEXT} --picture --json", {"split": "dev"}),
    "file": (evaluate_file, f"translations references {_TEXT} {_REPORT}", {"bootstrap": N_BOOTSTRAP}),
    "compare": (compare_files, f"references baseline systems --test --samples {_TEXT} {_REPORT} --picture", {}),
    "alignments": (score_alignments, "run --gold --sources --references --layer --device --picture --json", {}),
    "pairs": (score_pairs, "runs --device --picture --json", {}),
    "nymwa": (score_as_nymwa, "translations references --plain --force", {}),
    "curves": (curves, "runs --picture", {}),
}
