"""evaluate.py rescore: choose among translations by a language model."""

from dataclasses import asdict, replace
from pathlib import Path

from jsonargparse import Namespace

from utils.command_line import Parser, require_options_at_least
from utils.dataset.corpus import prepare_to_score
from utils.device import pick_device
from utils.evaluation.comparison import samples_of
from utils.evaluation.metric import bleu_tokenizer, build_metrics
from utils.evaluation.reference_text import ReferenceText
from utils.file import write_json
from utils.run import find_run, load_run
from utils.scoring.rescoring_trial import DocumentText, find_weights, score_choices
from utils.scoring.source_text import n_best, split_name
from utils.scoring.verb import Verb, run_text_options
from utils.task.rescore import RescoringConfig, load_rescorers, save_rescoring
from utils.terminal.option import changed_by
from utils.visualize.report import as_dict, as_text


def rescore_options(parser: Parser) -> None:
    """Add the options of `rescore`."""
    run_text_options(parser, "translate")
    parser.add_argument("--with", type=Path, metavar="RUN", help="folder of a language model's run; required")
    parser.add_argument(
        "--weights",
        type=float,
        nargs="+",
        metavar="W",
        default=[0.05, 0.1, 0.2, 0.3, 0.5],
        help="weights of its log-probabilities to try (default: 0.05 0.1 0.2 0.3 0.5); 0 is always tried",
    )
    parser.add_argument("--memory", type=int, metavar="M", help="tokens it remembers (default: as trained)")
    parser.add_argument("--beam", type=int, metavar="N", help="beam size: candidates per sentence (default: the run's)")
    parser.add_argument(
        "--dev_documents",
        type=Path,
        metavar="FILE",
        help="documents of the dev set: name and number of lines of each (default: a single document)",
    )
    parser.add_argument("--test_documents", type=Path, metavar="FILE", help="documents of the test set, likewise")
    parser.add_argument("--samples", type=int, metavar="N", help="resamples of the paired bootstrap (default: 1000)")
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="random seed of the resamples (default: SACREBLEU_SEED, or sacreBLEU's own)",
    )
    parser.add_argument("--save", action="store_true", help="save the weight, which translate.py then uses by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this file")


def rescore(arguments: Namespace) -> None:
    """Rerank a beam's translations by a language model: tune its weight on dev, score the chosen translations on test.

    For comparison, the same model also reranks without memory, with each sentence as a document of its own.
    """
    require_options_at_least(arguments, limit=1)
    if arguments["with"] is None:
        raise ValueError("--with is missing: give the folder of a language model's run")
    language_model = find_run(arguments["with"])
    config = RescoringConfig(memory_length=arguments.memory)
    weights = sorted({0.0, *(replace(config, weight=weight).weight for weight in arguments.weights)})
    run = load_run(find_run(arguments.run), pick_device(arguments.device))
    search = changed_by(run.config.search, {"beam": "beam_size"}, arguments)
    if search.beam_size == 1:
        raise ValueError("a beam of 1 leaves nothing to choose from: give e.g. --beam 8")
    rescorers = load_rescorers(language_model, run, search, [config, replace(config, memory_length=0)])
    if not rescorers[0].scorer.memory_length:
        del rescorers[1]  # without memory, the two are the same
    corpus = prepare_to_score(run.config.data)
    dev, test = (
        DocumentText.read(corpus, split, arguments[f"{split}_documents"], arguments.limit) for split in ("dev", "test")
    )
    samples_of("bootstrap", arguments.samples, len(test.pairs))
    dev_name, test_name = (
        split_name(corpus, split, arguments.limit and len(text.pairs)) for split, text in (("dev", dev), ("test", test))
    )
    tokenize = bleu_tokenizer(corpus.tgt_lang, corpus.pre_tokenized)
    metrics = build_metrics(corpus.tgt_lang, tokenize)
    translator = run.translator(search)
    on_dev = dev.candidates(n_best(translator, dev.pairs.src, search.beam_size))
    print(f"{run.folder.resolve().name}, beam {search.beam_size}, {dev_name}")
    rescorers, trials = find_weights(rescorers, on_dev, weights, metrics["BLEU"])
    asked = rescorers[0]
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
        found = {**about, **tried, **as_dict(evaluations, comparisons)}
        write_json(arguments.json, found)
    if arguments.save:
        kept = RescoringConfig(asked.weight, asked.scorer.memory_length)
        print(f"saved in {save_rescoring(run.folder, language_model, kept)}")


RESCORE = Verb(
    "[RUN] --with RUN [--weights W ...] [--beam N] [--memory M] [--save] [--json FILE]",
    "tune the weight of a language model for reranking on dev, and score it on test",
    rescore_options,
    rescore,
)
