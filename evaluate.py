"""Score translations: `python evaluate.py run [RUN]`, or one of the other verbs."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple, get_args

from jsonargparse import Namespace
from tqdm import tqdm

from const.version import VERSION
from utils.command_line import Parser, run_command
from utils.dataset.corpus import Corpus, prepare_corpus
from utils.dataset.parallel_text import read_lines, read_parallel
from utils.device import Device, pick_device
from utils.evaluation.comparison import System, Test, compare
from utils.evaluation.evaluation import Comparison, Evaluation
from utils.evaluation.head_importance import bleu_without, count_heads, head_importance, text_batches
from utils.evaluation.metric import TOKENIZERS, build_metrics, fitting_tokenizer, measure, sampling_seed
from utils.evaluation.plausibility import looks_tokenized, refuse_other_language, refuse_same
from utils.evaluation.protocol import TEST_LINES, TEST_WORDS, is_published_test, moses_words, multi_bleu
from utils.evaluation.reference_text import ReferenceText
from utils.evaluation.tuning import Trial, best_trial, try_settings
from utils.file import atomic_file
from utils.run import CONFIG, find_run, load_run
from utils.search.hypothesis import SearchConfig
from utils.search.translator import Translation, Translator
from utils.task.rescore import RescoringConfig, load_rescorers, save_rescoring
from utils.task.rescoring_trial import DocumentText, find_weights, score_choices
from utils.visualize.beam_width import draw_beam_width
from utils.visualize.head_importance import draw_head_importance, importance_table
from utils.visualize.report import as_json, as_text, write_html


class Verb(NamedTuple):
    """A sub-command: how it is called, what it is for, its options, what it does."""

    usage: str
    help: str
    add_options: Callable[[Parser], None]
    act: Callable[[Namespace], None]


def run_options(parser: Parser) -> None:
    """Those of `run`."""
    parser.add_argument("run", nargs="?", type=Path, help="folder of a run (default: the one trained last)")
    parser.add_argument("--split", choices=["dev", "test"], default="test", help="which text of the run's corpus")
    parser.add_argument("--beam", type=int, metavar="N", help="beam width, 1 is greedy (default: the run's)")
    parser.add_argument(
        "--length_penalty", type=float, metavar="A", help="larger prefers longer translations (default: the run's)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="score the first sentences only, this many")
    parser.add_argument("--translations", type=Path, metavar="FILE", help="write the translations to this file, too")
    parser.add_argument("--device", type=Device, default="auto", help="cpu, cuda, or whichever is there")
    report_options(parser)


def evaluate_run(arguments: Namespace) -> None:
    """Translate a text of a run's own corpus with the run, and score that."""
    refuse_limit(arguments.limit)
    run = load_run(find_run(arguments.run), pick_device(arguments.device))
    search = run.config.search
    if arguments.beam is not None:
        search = replace(search, beam_size=arguments.beam)
    if arguments.length_penalty is not None:
        search = replace(search, length_penalty=arguments.length_penalty)
    corpus = prepare_corpus(run.config.data)
    pairs = read_parallel(getattr(corpus, arguments.split))[: arguments.limit]
    translations = translate(run.translator(search), pairs.src)
    if arguments.translations:
        with atomic_file(arguments.translations) as draft:
            draft.write_text("".join(line + "\n" for line in translations), encoding="utf-8")
    name = split_name(corpus, arguments.split, arguments.limit and len(pairs))
    tokenize = fitting_tokenizer(corpus.tgt_lang, corpus.pre_tokenized)
    text = ReferenceText(name, corpus.tgt_lang, tokenize, pairs.src, pairs.tgt, corpus.train.tgt)
    system = f"{run.folder.resolve().name}, beam {search.beam_size}, length penalty {search.length_penalty:g}"
    report([evaluate(System(system, translations), text, arguments.bootstrap)], [], arguments)


def split_name(corpus: Corpus, split: str, n_first: int | None) -> str:
    """What was translated, in words."""
    part = f", first {n_first} sentences" if n_first else ""
    return f"{corpus.name} {split}, {corpus.src_lang}-{corpus.tgt_lang}{part}"


def translate(translator: Translator, sources: Sequence[str]) -> list[str]:
    """Translate, and say on standard error what could not be translated whole."""
    return [translation.text for translation in n_best(translator, sources, 1)]


def n_best(translator: Translator, sources: Sequence[str], n: int) -> list[Translation]:
    """The n best translations of each source; on standard error, what could not be translated whole."""
    with tqdm(total=len(sources), desc="translating", unit="sentence", disable=None, leave=False) as bar:
        found = translator.translate(sources, bar.update, n)
    for n_affected, what in (
        (sum(translation.lost_tokens > 0 for translation in found), "longer than the model's window and were cut"),
        (sum(translation.unknown for translation in found), "of unknown characters alone and were left as they are"),
    ):
        if n_affected:
            warn(f"{n_affected} of {len(found)} sources are {what}")
    return found


def tune_options(parser: Parser) -> None:
    """Those of `tune`."""
    parser.add_argument("run", nargs="?", type=Path, help="folder of a run (default: the one trained last)")
    parser.add_argument("--split", choices=["dev", "test"], default="dev", help="which text of the run's corpus")
    parser.add_argument(
        "--beams", type=int, nargs="+", metavar="N", default=[1, 2, 4, 8], help="beam widths (default: 1 2 4 8)"
    )
    parser.add_argument(
        "--length_penalties",
        type=float,
        nargs="+",
        metavar="A",
        default=[0.0, 0.6, 1.0, 1.4],
        help="length penalties (default: 0 0.6 1 1.4)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="translate the first sentences only, this many")
    parser.add_argument("--save", action="store_true", help="make the best ones the run's own settings")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw BLEU against beam width to this PNG file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all trials to this file")
    parser.add_argument("--device", type=Device, default="auto", help="cpu, cuda, or whichever is there")


def tune(arguments: Namespace) -> None:
    """Translate the development set with each beam width and length penalty, and say which are best."""
    refuse_limit(arguments.limit)
    run = load_run(find_run(arguments.run), pick_device(arguments.device))
    for beam_size in arguments.beams:
        replace(run.config.search, beam_size=beam_size)  # refuses what nothing can be found with
    corpus = prepare_corpus(run.config.data)
    pairs = read_parallel(getattr(corpus, arguments.split))[: arguments.limit]
    translator = run.translator()
    bleu = build_metrics(corpus.tgt_lang, fitting_tokenizer(corpus.tgt_lang, corpus.pre_tokenized))["BLEU"]
    n_trials = len(arguments.beams) * len(arguments.length_penalties)
    name = split_name(corpus, arguments.split, arguments.limit and len(pairs))
    print(f"{run.folder.resolve().name}, {name}\n\n  beam  length penalty   BLEU  length ratio")
    with tqdm(total=n_trials * len(pairs), unit="sentence", disable=None, leave=False) as bar:

        def translate_with(search: SearchConfig) -> list[str]:
            translator.search = search
            return [translation.text for translation in translator.translate(pairs.src, bar.update)]

        def show(trial: Trial) -> None:
            scores = f"{trial.bleu:>5.2f}  {trial.length_ratio:>12.3f}"
            with bar.external_write_mode():
                print(f"{trial.beam_size:>6}  {trial.length_penalty:>14g}  {scores}", flush=True)

        trials = try_settings(
            translate_with, pairs.tgt, run.config.search, arguments.beams, arguments.length_penalties, bleu, show
        )
    best = best_trial(trials)
    print(f"\nbest: --beam {best.beam_size} --length_penalty {best.length_penalty:g}   {bleu.get_signature()}")
    if arguments.json:
        found = {"run": run.folder.resolve().name, "text": name, "signature": str(bleu.get_signature())}
        with atomic_file(arguments.json) as draft:
            draft.write_text(json.dumps({**found, "trials": [asdict(trial) for trial in trials]}, indent=1) + "\n")
    if arguments.picture:
        draw_beam_width(trials, name, arguments.picture)
    if arguments.save:
        search = replace(run.config.search, beam_size=best.beam_size, length_penalty=best.length_penalty)
        replace(run.config, search=search).save(run.folder / CONFIG)
        print(f"saved in {run.folder / CONFIG}")


def rescore_options(parser: Parser) -> None:
    """Those of `rescore`."""
    parser.add_argument(
        "run", nargs="?", type=Path, help="folder of a translator's run (default: the one trained last)"
    )
    parser.add_argument("--with", type=Path, metavar="RUN", help="folder of a language model's run; needed")
    parser.add_argument(
        "--weights",
        type=float,
        nargs="+",
        metavar="W",
        default=[0.05, 0.1, 0.2, 0.3, 0.5],
        help="of the language model's log-probabilities (default: 0.05 0.1 0.2 0.3 0.5); 0 is always tried",
    )
    parser.add_argument("--memory", type=int, metavar="M", help="tokens that it remembers (default: as trained)")
    parser.add_argument("--beam", type=int, metavar="N", help="candidates of each sentence (default: the run's)")
    parser.add_argument(
        "--dev_documents",
        type=Path,
        metavar="FILE",
        help="documents of the dev set: the name and the number of lines of each (default: all is one)",
    )
    parser.add_argument("--test_documents", type=Path, metavar="FILE", help="documents of the test set")
    parser.add_argument("--limit", type=int, metavar="N", help="translate the first sentences only, this many")
    parser.add_argument("--samples", type=int, metavar="N", help="resamples of the paired bootstrap (default: 1000)")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of the samples (default: SACREBLEU_SEED, or sacreBLEU's)"
    )
    parser.add_argument("--save", action="store_true", help="keep the weight: translate.py takes it from now on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was found to this file")
    parser.add_argument("--device", type=Device, default="auto", help="cpu, cuda, or whichever is there")


def rescore(arguments: Namespace) -> None:
    """Choose among a beam's translations by a language model, too: find its weight on dev, score the choice on test.

    What its memory is worth is shown by the same model without one, to which each sentence is a document of its own.
    """
    refuse_limit(arguments.limit)
    if arguments["with"] is None:
        raise ValueError("--with is missing: give the folder of a language model's run")
    language_model = find_run(arguments["with"])
    config = RescoringConfig(memory_length=arguments.memory)
    weights = sorted({0.0, *(replace(config, weight=weight).weight for weight in arguments.weights)})
    run = load_run(find_run(arguments.run), pick_device(arguments.device))
    search = run.config.search if arguments.beam is None else replace(run.config.search, beam_size=arguments.beam)
    if search.beam_size == 1:
        raise ValueError("a beam of 1 leaves nothing to choose from: give --beam 8, say")
    asked, without = load_rescorers(language_model, run, search, [config, replace(config, memory_length=0)])
    rescorers = [asked, without] if asked.scorer.memory_length else [asked]
    corpus = prepare_corpus(run.config.data)
    dev, test = (
        DocumentText.read(corpus, split, arguments[f"{split}_documents"], arguments.limit) for split in ("dev", "test")
    )
    dev_name, test_name = (
        split_name(corpus, split, arguments.limit and len(text.pairs)) for split, text in (("dev", dev), ("test", test))
    )
    tokenize = fitting_tokenizer(corpus.tgt_lang, corpus.pre_tokenized)
    metrics = build_metrics(corpus.tgt_lang, tokenize)
    translator = run.translator(search)
    on_dev = dev.candidates(n_best(translator, dev.pairs.src, search.beam_size))
    print(f"{run.folder.resolve().name}, beam {search.beam_size}, {dev_name}")
    trials = find_weights(rescorers, on_dev, weights, metrics["BLEU"])
    print(f"\nbest: --rescore_weight {asked.weight:g}   {metrics['BLEU'].get_signature()}\n", flush=True)
    on_test = test.candidates(n_best(translator, test.pairs.src, search.beam_size))
    their_name = language_model.resolve().name
    named = {f"{their_name}, weight {r.weight:g}, memory {r.scorer.memory_length}": r for r in reversed(rescorers)}
    text = ReferenceText(test_name, corpus.tgt_lang, tokenize, test.pairs.src, test.pairs.tgt, None)
    compared = {name: metrics[name] for name in ("BLEU", "chrF2")}
    evaluations, comparisons = score_choices(named, on_test, text, compared, arguments.samples)
    print(as_text(evaluations, comparisons).rstrip("\n"))
    if arguments.json:
        about = {"run": run.folder.resolve().name, "with": their_name, "search": asdict(search), "dev": dev_name}
        tried = {"trials": [asdict(trial) for trial in trials]}
        with atomic_file(arguments.json) as draft:
            found = {**about, **tried, **json.loads(as_json(evaluations, comparisons))}
            draft.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    if arguments.save:
        kept = RescoringConfig(asked.weight, asked.scorer.memory_length)
        print(f"saved in {save_rescoring(run.folder, language_model, kept)}")


def heads_options(parser: Parser) -> None:
    """Those of `heads`."""
    parser.add_argument("run", nargs="?", type=Path, help="folder of a run (default: the one trained last)")
    parser.add_argument("--split", choices=["dev", "test"], default="dev", help="which text of the run's corpus")
    parser.add_argument("--limit", type=int, metavar="N", help="read the first sentences only, this many")
    parser.add_argument(
        "--bleu",
        action="store_true",
        help="translate the text without each head, too, which takes many times longer than its loss",
    )
    parser.add_argument("--beam", type=int, metavar="N", help="of --bleu: beam width, 1 is greedy (default: the run's)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw all heads to this PNG file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was found to this file")
    parser.add_argument("--device", type=Device, default="auto", help="cpu, cuda, or whichever is there")


def weigh_heads(arguments: Namespace) -> None:
    """Switch off one attention head after the other: how much the loss rises without it, and how widely it looks."""
    refuse_limit(arguments.limit)
    if arguments.beam is not None and not arguments.bleu:
        raise ValueError(f"--beam {arguments.beam} is of translations: add --bleu")
    device = pick_device(arguments.device)
    run = load_run(find_run(arguments.run), device)
    search = run.config.search if arguments.beam is None else replace(run.config.search, beam_size=arguments.beam)
    corpus = prepare_corpus(run.config.data)
    pairs = read_parallel(getattr(corpus, arguments.split))[: arguments.limit]
    name = split_name(corpus, arguments.split, arguments.limit and len(pairs))
    title, n_heads, signature = f"{run.folder.resolve().name}, {name}", count_heads(run.model), None
    with tqdm(total=n_heads * (1 + arguments.bleu), unit="head", disable=None, leave=False) as bar:
        found = head_importance(run.model, text_batches(pairs, run.tokenizers, device), bar.update)
        if arguments.bleu:
            bleu = build_metrics(corpus.tgt_lang, fitting_tokenizer(corpus.tgt_lang, corpus.pre_tokenized))["BLEU"]
            found = found.with_bleu(*bleu_without(run.translator(search), pairs, bleu, bar.update))
            signature = str(bleu.get_signature())
    print("\n".join([title, "", *importance_table(found)]))
    if arguments.picture:
        draw_head_importance(found, title, arguments.picture)
    if arguments.json:
        about = {"run": run.folder.resolve().name, "text": name, "loss": found.loss, "bleu": found.bleu}
        heads = [asdict(head) for head in found.heads]
        with atomic_file(arguments.json) as draft:
            draft.write_text(json.dumps({**about, "signature": signature, "heads": heads}, indent=1) + "\n")


def refuse_limit(limit: int | None) -> None:
    """An error where no sentence would be left."""
    if limit is not None and limit < 1:
        raise ValueError(f"--limit {limit}: give 1 or more, or leave it out")


def file_options(parser: Parser) -> None:
    """Those of `file`."""
    parser.add_argument("translations", type=Path, help="a translation a line, UTF-8")
    parser.add_argument("references", type=Path, help="line by line, what they should be")
    text_options(parser)
    report_options(parser)


def evaluate_file(arguments: Namespace) -> None:
    """Score a file of translations."""
    text, (system,) = read_text(arguments, {"TRANSLATIONS": arguments.translations})
    report([evaluate(system, text, arguments.bootstrap)], [], arguments)


def compare_options(parser: Parser) -> None:
    """Those of `compare`."""
    parser.add_argument("references", type=Path, help="what the translations should be, line by line, UTF-8")
    parser.add_argument("baseline", type=Path, help="translations of the system to compare with")
    parser.add_argument("systems", type=Path, nargs="+", help="translations of the others, a file each")
    parser.add_argument(
        "--test", type=str, choices=list(get_args(Test)), default="bootstrap", help="how chance is ruled out"
    )
    parser.add_argument(
        "--samples", type=int, metavar="N", help="of the test (default: 1000 of bootstrap, 10000 of randomization)"
    )
    text_options(parser)
    report_options(parser)


def compare_files(arguments: Namespace) -> None:
    """Score files of translations, and test whether they differ from the first by more than chance."""
    files = {"BASELINE": arguments.baseline} | {f"SYSTEM {i}": file for i, file in enumerate(arguments.systems, 1)}
    text, systems = read_text(arguments, files)
    metrics = build_metrics(text.tgt_lang, text.tokenize)
    with tqdm(total=len(metrics), desc="comparing", unit="metric", disable=None, leave=False) as bar:
        scores, comparisons = compare(
            systems, text.references, metrics, arguments.test, arguments.samples, arguments.bootstrap, bar.update
        )
    evaluations = [text.evaluation(system, found) for system, found in zip(systems, scores, strict=True)]
    report(evaluations, comparisons, arguments)


def nymwa_options(parser: Parser) -> None:
    """Those of `nymwa`."""
    parser.add_argument("translations", type=Path, help="translations of KFTT's test set, UTF-8")
    parser.add_argument("references", type=Path, help="tok/kyoto-test.en of KFTT")
    parser.add_argument(
        "--plain", action="store_true", help="the translations are plain text: cut it as the references are, by Moses"
    )
    parser.add_argument("--force", action="store_true", help="score what looks wrong, too")


def score_as_nymwa(arguments: Namespace) -> None:
    """Print the line of multi-bleu.perl."""
    translations, references = read_aligned([arguments.translations, arguments.references])
    if not arguments.force:
        refuse_same(
            {f"TRANSLATIONS {arguments.translations}": translations, f"REFERENCES {arguments.references}": references}
        )
    if not is_published_test(references):
        warn(
            f"{arguments.references} is not tok/kyoto-test.en of KFTT ({TEST_LINES:,} lines, {TEST_WORDS:,} words): "
            "the score cannot be set beside those of the test set"
        )
    if arguments.plain:
        translations = moses_words(translations)
    elif looks_tokenized(references) and not looks_tokenized(translations):
        warn(
            f"{arguments.translations} is not tokenized, and {arguments.references} is: "
            "every word before a full stop or comma counts as wrong; give --plain to have it cut"
        )
    print(multi_bleu(translations, references))


VERBS = {
    "run": Verb(
        "[RUN] [--split dev|test] [--beam N] [--limit N] [--translations FILE]",
        "translate the test set of a run's corpus with the run, and score that",
        run_options,
        evaluate_run,
    ),
    "tune": Verb(
        "[RUN] [--beams N ...] [--length_penalties A ...] [--save] [--picture FILE]",
        "find the beam width and the length penalty that translate the dev set best",
        tune_options,
        tune,
    ),
    "rescore": Verb(
        "[RUN] --with RUN [--weights W ...] [--beam N] [--memory M] [--save] [--json FILE]",
        "find the weight of a language model beside the translator on dev, and score it on test",
        rescore_options,
        rescore,
    ),
    "heads": Verb(
        "[RUN] [--split dev|test] [--limit N] [--bleu] [--picture FILE] [--json FILE]",
        "switch off each attention head, and see what it was worth",
        heads_options,
        weigh_heads,
    ),
    "file": Verb(
        "TRANSLATIONS REFERENCES --tgt_lang CODE [--sources FILE] [--pre_tokenized]",
        "score a file of translations",
        file_options,
        evaluate_file,
    ),
    "compare": Verb(
        "REFERENCES BASELINE SYSTEM [SYSTEM ...] --tgt_lang CODE [--test bootstrap|randomization]",
        "score files, and test whether they differ from a baseline by more than chance",
        compare_options,
        compare_files,
    ),
    "nymwa": Verb(
        "TRANSLATIONS REFERENCES [--plain]",
        "score as nymwa/kftt_jaen_example does: multi-bleu.perl of lower-cased tokens",
        nymwa_options,
        score_as_nymwa,
    ),
}


def text_options(parser: Parser) -> None:
    """What must be known of texts that are given as files."""
    parser.add_argument(
        "--tgt_lang", type=str, metavar="CODE", help="language of the translations: en, ja, ...; needed"
    )
    parser.add_argument("--sources", type=Path, metavar="FILE", help="what was translated, for the report")
    parser.add_argument(
        "--training_text", type=Path, metavar="FILE", help="target side of the training text: F1 by word frequency"
    )
    parser.add_argument("--pre_tokenized", action="store_true", help="spaces part the words, in both files")
    parser.add_argument(
        "--tokenize", metavar="NAME", choices=list(TOKENIZERS), help="BLEU's tokenizer (default: the language's)"
    )
    parser.add_argument("--force", action="store_true", help="score what looks wrong, too")


def report_options(parser: Parser) -> None:
    """What all reports have in common."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to this file, as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report to this file, as a page")
    parser.add_argument(
        "--bootstrap", type=int, metavar="N", default=1000, help="resamples for 95 %% intervals; 0: none"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of the samples (default: SACREBLEU_SEED, or sacreBLEU's own)"
    )


def read_text(arguments: Namespace, files: dict[str, Path]) -> tuple[ReferenceText, list[System]]:
    """Read references, translations and what else is given; refuse what would make the score say nothing."""
    if arguments.tgt_lang is None:
        raise ValueError("--tgt_lang is missing: give the language of the translations, such as --tgt_lang en")
    given = {"REFERENCES": arguments.references, **files}
    if arguments.sources:
        given["--sources"] = arguments.sources
    lines = dict(zip(given, read_aligned(list(given.values())), strict=True))
    if not arguments.force:
        refuse_same({f"{role} {given[role]}": lines[role] for role in given})
        refuse_other_language(lines["REFERENCES"], arguments.tgt_lang, f"REFERENCES {arguments.references}")
    tokenize = fitting_tokenizer(arguments.tgt_lang, arguments.pre_tokenized, arguments.tokenize, arguments.force)
    if tokenize != "none":
        for role in given:
            if role != "--sources" and looks_tokenized(lines[role]):
                warn(f"{given[role]} looks tokenized: give --pre_tokenized if spaces part all words and marks in it")
    if arguments.training_text and not arguments.training_text.is_file():
        raise ValueError(f"no such file: {arguments.training_text}")
    text = ReferenceText(
        str(arguments.references),
        arguments.tgt_lang,
        tokenize,
        lines.get("--sources", []),
        lines["REFERENCES"],
        arguments.training_text,
    )
    return text, [System(str(path), lines[role]) for role, path in files.items()]


def read_aligned(files: Sequence[Path]) -> list[list[str]]:
    """Read texts that belong together line by line.

    Raises:
        ValueError: a file is missing, empty or not UTF-8, or the line counts differ.
    """
    texts = [read_lines(file) for file in files]
    for file, lines in zip(files, texts, strict=True):
        if len(lines) != len(texts[0]):
            raise ValueError(
                f"{files[0]} has {len(texts[0]):,} lines but {file} has {len(lines):,}: "
                "line i of one must belong to line i of the other"
            )
    return texts


def evaluate(system: System, text: ReferenceText, n_bootstrap: int) -> Evaluation:
    """Score a system and look at where it is good."""
    metrics = build_metrics(text.tgt_lang, text.tokenize)
    with tqdm(total=len(metrics), desc="scoring", unit="metric", disable=None, leave=False) as bar:
        found = measure(system.translations, text.references, metrics, n_bootstrap, bar.update)
    return text.evaluation(system, found)


def report(evaluations: Sequence[Evaluation], comparisons: Sequence[Comparison], arguments: Namespace) -> None:
    """Print what was found, and write it to the files that are asked for."""
    print(as_text(evaluations, comparisons).rstrip("\n"))
    if arguments.json:
        with atomic_file(arguments.json) as draft:
            draft.write_text(as_json(evaluations, comparisons).rstrip("\n") + "\n", encoding="utf-8")
    if arguments.html:
        write_html(evaluations, comparisons, arguments.html)


def warn(message: str) -> None:
    """Say on standard error what a reader of the score must know."""
    print(f"evaluate.py: warning: {message}", file=sys.stderr)


def build_parser() -> Parser:
    """All verbs with their options."""
    parser = Parser(
        prog="evaluate.py",
        version=VERSION,
        usage="python evaluate.py VERB ... (python evaluate.py VERB --help shows its options)",
        description="Score translations by BLEU, chrF2 and TER, each with its sacreBLEU signature and 95 % interval.",
        epilog="""examples:
  python evaluate.py run                                        the newest run on its test set
  python evaluate.py run pickles/RUN --split dev --beam 1 --limit 200
  python evaluate.py tune --save                                find beam width and length penalty on dev
  python evaluate.py tune --beams 1 2 5 10 20 50 100 --length_penalties 0.6 --picture beam_width.png
  python evaluate.py rescore --with pickles/transformer_xl_en-RUN --beam 8 --save
  python evaluate.py heads --picture heads.png                  what each attention head is worth
  python evaluate.py file my.en test.en --tgt_lang en --html report.html
  python evaluate.py file my.ja test.ja --tgt_lang ja --sources test.en --json report.json
  python evaluate.py compare test.en before.en after.en --tgt_lang en --test randomization
  python evaluate.py nymwa my.tok.en corpus/kftt/tok/kyoto-test.en
  python evaluate.py nymwa pickles/RUN/test.txt corpus/kftt/tok/kyoto-test.en --plain""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subcommands(dest="verb", title="verbs", metavar="VERB", description=argparse.SUPPRESS)
    for name, verb in VERBS.items():
        verb_parser = Parser(usage=f"python evaluate.py {name} {verb.usage}", description=verb.act.__doc__)
        verb.add_options(verb_parser)
        verbs.add_subcommand(name, verb_parser, help=verb.help)
        verb_parser.prog = f"evaluate.py {name}"  # jsonargparse has put the usage there, which stands before errors
    return parser


def main() -> None:
    """Read the arguments and do what the verb says."""
    arguments = build_parser().parse_args()
    with sampling_seed(arguments[arguments.verb].get("seed")):
        VERBS[arguments.verb].act(arguments[arguments.verb])


if __name__ == "__main__":
    run_command("evaluate.py", main)
