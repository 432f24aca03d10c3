"""How translations are scored: a run's of its own corpus, also to tune its search, or those in files, also compared."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm import tqdm

from config.data import require_language
from utils.command import Namespace, print_above_bars, require_options_at_least
from utils.dataset.text import ParallelText, read_lines, read_parallel, require_text
from utils.evaluation.analysis import Contrast, Evaluation, ReferenceText
from utils.evaluation.metric import (
    PUBLISHED_TEST,
    Comparison,
    System,
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
from utils.evaluation.report import as_text, charts, write_html
from utils.file import require_writable, write_json, write_lines
from utils.run import CONFIG, TRANSLATIONS, find_run
from utils.terminal.option import changed_by, require_candidates
from utils.text.language import looks_tokenized, refuse_other_language, refuse_same

if TYPE_CHECKING:
    from utils.dataset.corpus import Corpus
    from utils.load import Run

N_BOOTSTRAP = 1000  # as in sacreBLEU's command line


def warn(message: str) -> None:
    """Print a warning for the reader of a score on standard error."""
    print(f"evaluate.py: warning: {message}", file=sys.stderr)


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


def loaded(folder: Path, arguments: Namespace, plain: bool = False) -> "Run":
    """Load a run on the requested device; its texts have the requested tag, or are plain, even if it learned words."""
    # only now: torch takes seconds to import, which neither --help nor a mistake should wait for
    from utils.device import pick_device
    from utils.load import load_run
    from utils.memory import keep_freed_memory

    keep_freed_memory()
    return load_run(folder, pick_device(arguments.device), plain, arguments.get("tag"))


def read_run_text(arguments: Namespace) -> tuple["Run", "Corpus", ParallelText, str]:
    """Return a run, its corpus, a held-out set of that or the first sentences of it, and what to call this text."""
    require_options_at_least(arguments, limit=1)
    folder = find_run(arguments.run)
    from utils.dataset.corpus import prepare_to_score

    run = loaded(folder, arguments)
    corpus = prepare_to_score(run.config.data, split=arguments.split)
    pairs = read_parallel(corpus.held_out(arguments.split))[: arguments.limit]
    part = f", first {len(pairs)} sentences" if arguments.limit else ""
    tag = "" if arguments.tag is None else f", tag {arguments.tag or 'none'}"
    return run, corpus, pairs, f"{corpus.name} {arguments.split}, {'-'.join(corpus.data.languages)}{tag}{part}"


def score(system: System, text: ReferenceText, arguments: Namespace) -> None:
    """Score a single system, and report."""
    metrics = build_metrics(text.tgt_lang, text.tokenize)
    scores = measure(system.translations, text.references, metrics, arguments.bootstrap)
    report(arguments, [text.evaluation(system, scores)])


def report(
    arguments: Namespace,
    evaluations: Sequence[Evaluation],
    comparisons: Sequence[Comparison] = (),
    contrasts: Sequence[Contrast] = (),
) -> None:
    """Print the results, and write them to the requested files."""
    print(as_text(evaluations, comparisons).rstrip("\n"))
    if arguments.json:
        results: Any = {"evaluations": evaluations, "comparisons": comparisons, "contrasts": contrasts}
        write_json(arguments.json, {name: [asdict(record) for record in records] for name, records in results.items()})
    if arguments.html:
        write_html(evaluations, comparisons, arguments.html, contrasts)


# A run, on a text of its own corpus.


def evaluate_run(arguments: Namespace) -> None:
    """Translate a text of a run's own corpus with the run, and score the translations."""
    run, corpus, pairs, name = read_run_text(arguments)
    search = changed_by(run.config.search, {"beam": "beam_size", "length_penalty": "length_penalty"}, arguments)
    refuse_samples(arguments.bootstrap, len(pairs), "--bootstrap")
    if by_risk := arguments.minimum_bayes_risk:
        require_candidates(search, "--beam 8")
    translator = replace(run.translator(search, arguments.precision), minimum_bayes_risk=by_risk)
    with tqdm(total=len(pairs), desc="translating", unit="sentence", disable=None, leave=False) as bar:
        translations = translator.translate(pairs.src, bar.update)
    if n_unknown := sum(translation.unknown for translation in translations):
        warn(f"{n_unknown} of {len(pairs)} sources are entirely outside the vocabulary and were left unchanged")
    system = System(
        f"{run.folder.resolve().name}, beam {search.beam_size}, length penalty {search.length_penalty:g}"
        + (f", {arguments.precision}" if arguments.precision != "auto" else "")
        + (", minimum Bayes risk" if by_risk else ""),
        [translation.text for translation in translations],
    )
    if arguments.translations:
        write_lines(arguments.translations, system.translations)
    tgt_lang = corpus.data.tgt_lang
    tokenize = bleu_tokenizer(tgt_lang, corpus.data.is_tokenized)
    score(system, ReferenceText(name, tgt_lang, tokenize, pairs.src, pairs.tgt, training_text(run)), arguments)


def training_text(run: "Run") -> Path | None:
    """Return the target side of the text that a run was trained on, or None, with a warning, where it is gone."""
    from utils.dataset.corpus import prepare_corpus

    try:
        return prepare_corpus(run.config.data).train.tgt
    except ValueError as problem:
        warn(f"no F1 by word frequency, which needs the training text: {problem}")
        return None


class Trial(NamedTuple):
    """What a setting of the search gives."""

    beam_size: int
    length_penalty: float
    bleu: float
    length_ratio: float  # tokens of the translations over tokens of the references, as BLEU counts them


def tune(arguments: Namespace) -> None:
    """Find the beam size and length penalty that translate the dev set best."""
    run, corpus, pairs, text = read_run_text(arguments)
    if arguments.save:
        require_writable(run.folder, "leave out --save")
    options = {"beams": "beam_size", "length_penalties": "length_penalty"}
    searches = [  # refuses values out of range
        changed_by(run.config.search, options, {"beams": beam, "length_penalties": penalty})
        for beam, penalty in product(arguments.beams, arguments.length_penalties)
    ]
    name, translator, bleu = run.folder.resolve().name, run.translator(), corpus_metrics(corpus)["BLEU"]
    trials: list[Trial] = []
    print(f"{name}, {text}\n\n  beam  length penalty   BLEU  length ratio")
    with tqdm(total=len(searches) * len(pairs), unit="sentence", disable=None, leave=False) as bar:
        for search in searches:
            if not trials or search.beam_size > 1 or trials[-1].beam_size > 1:  # no penalty changes greedy search
                translator.search = search
                translations = [translation.text for translation in translator.translate(pairs.src, bar.update)]
                result = bleu.corpus_score(translations, [pairs.tgt])
            else:
                bar.update(len(pairs))
            trials.append(trial := Trial(search.beam_size, search.length_penalty, result.score, result.ratio))
            shown = f"{trial.bleu:>5.2f}  {trial.length_ratio:>12.3f}"
            print_above_bars(f"{trial.beam_size:>6}  {trial.length_penalty:>14g}  {shown}")
    best, signature = max(trials, key=lambda trial: (trial.bleu, -trial.beam_size)), str(bleu.get_signature())
    print(f"\nbest: --beam {best.beam_size} --length-penalty {best.length_penalty:g}   {signature}")
    if arguments.json:
        told = [trial._asdict() for trial in trials]
        write_json(arguments.json, {"run": name, "text": text, "signature": signature, "trials": told})
    if arguments.picture:
        draw_beam_width(trials, text, arguments.picture)
    if arguments.save:
        search = replace(run.config.search, beam_size=best.beam_size, length_penalty=best.length_penalty)
        replace(run.config, search=search).save(run.folder / CONFIG)
        print(f"saved in {run.folder / CONFIG}")


def draw_beam_width(trials: Sequence[Trial], text: str, picture: Path) -> None:
    """Draw BLEU and length of a text against beam size, with a line for each length penalty, as a PNG."""
    from matplotlib.ticker import ScalarFormatter

    from utils.visualize.curve import sheet

    with sheet(picture, (10, 4), columns=2, dpi=120) as (quality, length):
        for penalty in sorted({trial.length_penalty for trial in trials}):
            line = sorted(trial for trial in trials if trial.length_penalty == penalty)  # by beam size
            widths, _, bleu, ratios = zip(*line, strict=True)
            for axes, heights in ((quality, bleu), (length, ratios)):
                axes.plot(widths, heights, "o-", ms=3, label=f"length penalty {penalty:g}")
        quality.set(title=f"BLEU of {text}", ylabel="BLEU")
        length.set(title="Length", ylabel="length of translations / of references")
        length.axhline(1, color="black", lw=0.8, ls=":")
        for axes in (quality, length):
            axes.set_xscale("log", base=2)
            axes.set(xlabel="beam width")
            axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.grid(alpha=0.3)
        quality.legend(frameon=False)


# Files, from any system, against references.


def evaluate_file(arguments: Namespace) -> None:
    """Score a file of translations."""
    text, (system,) = read_text(arguments, {"TRANSLATIONS": arguments.translations})
    score(system, text, arguments)


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
    evaluations = [text.evaluation(*system_and_scores) for system_and_scores in zip(systems, scores, strict=True)]
    contrasts = [text.contrast(systems[0], other) for other in systems[1:] if arguments.html or arguments.json]
    report(arguments, evaluations, comparisons, contrasts)
    if arguments.picture:
        draw_bleu_by_length(evaluations, arguments.picture)


def draw_bleu_by_length(evaluations: Sequence[Evaluation], picture: Path) -> None:
    """Draw BLEU against the length of the sentences, with a line for each system, as a PNG."""
    from utils.visualize.curve import sheet

    chart = charts(evaluations)[0]
    labels = {label: f"{label.split()[0]}\n{groups[min(groups)].count:,}" for label, groups in chart.rows.items()}
    with sheet(picture, (8, 4.5), dpi=120) as (axes,):
        for place, evaluation in enumerate(evaluations):
            line = [(labels[label], groups[place].score) for label, groups in chart.rows.items() if place in groups]
            axes.plot(*zip(*line, strict=True), "o-", label=Path(evaluation.system).stem)
        unit = next(iter(chart.rows)).partition(" ")[2]
        xlabel = f"{unit} of a sentence\n(below: number of sentences)"
        axes.set(ylim=(0, None), title=chart.title, xlabel=xlabel, ylabel=chart.measure)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)


def read_text(arguments: Namespace, files: dict[str, Path]) -> tuple[ReferenceText, list[System]]:
    """Read references, translations and other given texts; refuse texts whose score would be meaningless."""
    language, roles = arguments.tgt_lang, ("REFERENCES", *files)
    if language is None:
        raise ValueError("--tgt-lang is missing: give the language of the translations, such as --tgt-lang en")
    require_language(tgt_lang=language)
    paths = {"REFERENCES": arguments.references} | {role: translations_of(path) for role, path in files.items()}
    if arguments.sources:
        paths["--sources"] = arguments.sources
    lines = dict(zip(paths, read_aligned([*paths.values()]), strict=True))
    if not arguments.force:
        refuse_same({f"{role} {path}": lines[role] for role, path in paths.items()})
        for role in roles:
            remedy = "wrong file, or wrong --tgt-lang? (--force scores it anyway)"
            refuse_other_language(lines[role], language, f"{role} {paths[role]}", remedy)
    tokenize = fitting_tokenizer(language, arguments.pre_tokenized, arguments.tokenize, arguments.force)
    for role in roles:
        if tokenize != "none" and looks_tokenized(lines[role]):
            warn(f"{paths[role]} looks tokenized: give --pre-tokenized if spaces separate all words and marks")
    if arguments.training_text:
        require_text(arguments.training_text)
    sources, name = lines.get("--sources", []), str(arguments.references)
    text = ReferenceText(name, language, tokenize, sources, lines["REFERENCES"], arguments.training_text)
    return text, [System(str(path), lines[role]) for role, path in files.items()]


def translations_of(path: Path) -> Path:
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


def print_multi_bleu(arguments: Namespace) -> None:
    """Score lower-cased tokens as multi-bleu.perl does, by the protocol of nymwa/kftt_jaen_example."""
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
