"""Score translations: `python evaluate.py run [RUN]`, or another verb; `curves` draws trainings."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import yaml
from tqdm import tqdm

from config.data import primary_language
from config.training import Device
from const.path import EVERYDAY
from utils.command import Namespace, Parser, aligned, require_options_at_least, run_command
from utils.config import TranslationConfig
from utils.dataset.cache import file_hash
from utils.evaluation.metric import TOKENIZERS, Test, sampling_seed
from utils.evaluation.score import (
    N_BOOTSTRAP,
    compare_files,
    evaluate_file,
    evaluate_run,
    loaded,
    print_multi_bleu,
    read_aligned,
    read_run_text,
    tune,
)
from utils.file import require_outputs, write_json
from utils.run import KEPT_WEIGHTS, WEIGHTS, distinct_names, find_run, read_config
from utils.terminal.option import MINIMUM_BAYES_RISK, PRECISION
from utils.text.language import refuse_other_language

# What computes is imported where it is used: torch takes seconds, which neither --help nor a mistake should wait for.


def build_parser() -> Parser:
    """Build the parser with all verbs and their options."""
    parser = Parser(
        prog="evaluate.py",
        usage="python evaluate.py VERB ... (python evaluate.py VERB --help shows its options)",
        description="Score translations by BLEU, chrF2, chrF2++ and TER, with sacreBLEU's signatures and intervals.",
        epilog="""examples:
  python evaluate.py run                                        the newest run on its test set
  python evaluate.py run pickles/RUN --split dev --beam 1 --limit 200
  python evaluate.py run pickles/RUN --split test_2017_flickr   a further test set of Multi30k
  python evaluate.py tune --save                                tune beam size and length penalty on the dev set
  python evaluate.py tune --beams 1 2 5 10 20 50 100 --length-penalties 0.6 --picture beam_width.png
  python evaluate.py heads --picture heads.png                  what each attention head is worth
  python evaluate.py alignments kftt_ja_en --gold align.txt --sources japanese.txt --references english.txt
  python evaluate.py pairs demo                                 who did it, negation, tense, ...: does the demo know?
  python evaluate.py survive kftt_ja_en                         numbers, negation, addresses, names: what is lost?
  python evaluate.py everyday everyday_ja_en everyday_en_ja     a page of everyday sentences, to be read
  python evaluate.py file my.en test.en --tgt-lang en --html report.html
  python evaluate.py file my.ja test.ja --tgt-lang ja --sources test.en --json report.json
  python evaluate.py compare test.en before.en after.en --tgt-lang en --test randomization
  python evaluate.py compare test.en before.en after.en --tgt-lang en --html compared.html
  python evaluate.py multi-bleu my.tok.en corpus/kftt/tok/kyoto-test.en
  python evaluate.py multi-bleu pickles/RUN/test.txt corpus/kftt/tok/kyoto-test.en --plain
  python evaluate.py curves pickles/RUN pickles/OTHER --picture curves.png""",
    )
    verbs = parser.add_subparsers(prog="evaluate.py", dest="verb", title="verbs", metavar="VERB", required=True)
    for name, (act, arguments, defaults) in VERBS.items():
        text = act.__doc__ or ""
        verb = verbs.add_parser(name, description=text, help=text[0].lower() + text[1:].rstrip("."))
        for argument in arguments.split():
            verb.add_argument(argument, **ARGUMENTS[argument])
        verb.set_defaults(**defaults)
        verb.usage = f"python {verb.format_usage().removeprefix('usage: ')}"
    return parser


def weigh_heads(arguments: Namespace) -> None:
    """Switch off the attention heads one at a time: how much the loss rises without each, and how widely it attends."""
    run, _, pairs, text = read_run_text(arguments)
    from utils.evaluation.heads import draw_head_importance, head_importance, importance_table

    importance, name = head_importance(run, pairs), run.folder.resolve().name
    print("\n".join([f"{name}, {text}", "", *importance_table(importance)]))
    if arguments.picture:
        draw_head_importance(importance, f"{name}, {text}", arguments.picture)
    if arguments.json:
        heads = [head._asdict() for head in importance.heads]
        write_json(arguments.json, {"run": name, "text": text, "loss": importance.loss, "heads": heads})


def score_alignments(arguments: Namespace) -> None:
    """Score the word alignments that a run's cross-attention finds in given translations against gold alignments."""
    files = [arguments.gold, arguments.sources, arguments.references]
    if None in files:
        raise ValueError("--gold, --sources and --references belong together: give all three")
    lines, *texts = read_aligned(files)
    folder = find_run(arguments.run)
    languages = read_config(folder, TranslationConfig).data.languages
    for text, file, language in zip(texts, files[1:], languages, strict=True):
        refuse_other_language(text, language, str(file), "wrong file, or a run of the other direction?")
    from utils.evaluation.heads import draw_error_rates, parse_gold, score_alignment

    golds = [
        parse_gold(f"{arguments.gold}, line {number}", line, len(source.split()), len(target.split()))
        for number, (line, source, target) in enumerate(zip(lines, *texts, strict=True), 1)
    ]
    run, name = loaded(folder, arguments), folder.resolve().name
    scores, left_out = score_alignment(run, texts, golds, arguments.layer)
    best, title = min(scores, key=lambda score: score.aer), f"{name}, {arguments.gold.name}"
    rows = [[str(layer), str(head), *(f"{100 * share:.1f}" for share in shares)] for layer, head, *shares in scores]
    print(f"{title}: {len(golds) - left_out:,} sentences, {left_out:,} left out; in %\n")
    print(*aligned([["layer", "head", "AER", "precision", "recall"], *rows], "rrrrr"), sep="\n")
    print(f"\nbest: layer {best.layer}, head {best.head}")
    if arguments.picture:
        draw_error_rates(scores, title, arguments.picture)
    if arguments.json:
        result = {"left_out": left_out, "best": best._asdict(), "scores": [score._asdict() for score in scores]}
        write_json(arguments.json, {"run": name, "gold": str(arguments.gold), **result})


def score_pairs(arguments: Namespace) -> None:
    """Compare how likely runs of the demo's corpus find a right translation, and one that is wrong in one thing."""
    folders = [find_run(run) for run in arguments.runs]
    distinct_names(folders)
    for folder in folders:
        data = read_config(folder, TranslationConfig).data
        corpus = "files" if data.has_own_text else data.corpus
        if (corpus, *data.languages) != ("embedded", "ja", "en"):
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
    from utils.evaluation.validation import CHANCE, draw_pair_courses, pair_course, pair_table

    pairs = minimal_pairs()
    courses = [pair_course(loaded(folder, arguments), pairs) for folder in folders]
    print("right translation likelier than the wrong one, % of the pairs", *pair_table(courses, pairs), sep="\n")
    if arguments.picture:
        draw_pair_courses(courses, arguments.picture)
    if arguments.json:
        counts, runs = {name: len(pairs[name]) for name in pairs}, [course._asdict() for course in courses]
        write_json(arguments.json, {"pairs": counts, "chance": CHANCE, "runs": runs})


def check_survival(arguments: Namespace) -> None:
    """Check what must survive in translations of drawn sentences: numbers, negation, addresses, names and more."""
    require_options_at_least(arguments, sentences=1)
    folder = find_run(arguments.run)
    data = read_config(folder, TranslationConfig).data
    source, target = map(primary_language, data.languages)
    if {source, target} != {"ja", "en"}:
        raise ValueError(f"{folder} translates {source} to {target}; the sentences are for ja to en, or en to ja")
    from utils.evaluation.survive import check, draw, survival_table, wrong_examples

    translator = loaded(folder, arguments, plain=True).translator()
    sentences = draw(source, arguments.sentences)
    texts = [*dict.fromkeys(text for sentence in sentences for text in (sentence.text, sentence.twin))]
    with tqdm(total=len(texts), desc="translating", unit="sentence", disable=None, leave=False) as bar:
        translations = [translation.text for translation in translator.translate(texts, bar.update)]
    checked = check(sentences, dict(zip(texts, translations, strict=True)))
    name = folder.resolve().name
    print(f"{name}, {source}-{target}: what survives", *survival_table(checked), "", sep="\n")
    print("wrong, for example:", *([*wrong_examples(checked)] or ["nothing"]), sep="\n")
    if arguments.json:
        records = [one.sentence._asdict() | {"translation": one.translation, "right": one.is_right} for one in checked]
        write_json(arguments.json, {"run": name, "sentences": records})


def print_everyday(arguments: Namespace) -> None:
    """Print a Markdown page of everyday sentences, translated by each of the runs, to be read by eye."""
    everyday = yaml.safe_load(EVERYDAY.read_text(encoding="utf-8"))
    folders = [find_run(run) for run in arguments.runs]
    directions = [read_config(folder, TranslationConfig).data.languages for folder in folders]
    for folder, (source, _) in zip(folders, directions, strict=True):
        if primary_language(source) not in everyday:
            raise ValueError(f"{folder} reads {source}; the sentences are in {' and '.join(everyday)}")
    from utils.terminal.output import notices

    names = [folder.resolve().name for folder in folders]
    print(f"# Everyday sentences\n\nOf no corpus; `python evaluate.py everyday {' '.join(names)}` printed this page.")
    for name, folder, (source, target) in zip(names, folders, directions, strict=True):
        print(f"\n## `{name}` ({source}→{target}), weights {file_hash(folder / WEIGHTS)[:8]}")
        topics = {topic: text.split(" / ") for topic, text in everyday[primary_language(source)].items()}
        translator = loaded(folder, arguments, plain=True).translator()
        translations = iter(translator.translate([*chain(*topics.values())]))
        for topic, sentences in topics.items():
            print(f"\n### {topic.capitalize()}\n")
            for sentence, translation in zip(sentences, translations, strict=False):
                print(f"- {sentence}\n  - **{translation.text}**", *notices(translation).values(), sep="\n  - ")


def curves(arguments: Namespace) -> None:
    """Draw loss, dev scores, learning rate and gradient norm of one run, or of several overlaid."""
    if arguments.picture is None:
        raise ValueError("--picture is missing: give the PNG file to write")
    from utils.training.report import LOG
    from utils.visualize.curve import draw_runs

    draw_runs([find_run(run, having=LOG) for run in arguments.runs], arguments.picture)


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
    "references": {"type": Path, "help": "reference translations, one per line, UTF-8; multi-bleu: tok/kyoto-test.en"},
    "baseline": {"type": Path, "help": "translations of the baseline system, or its run's folder"},
    "systems": {"nargs": "+", "type": Path, "help": "those of the other systems, one file or folder each"},
    "--limit": {"type": int, "metavar": "N", "help": "read only the first N sentences"},
    "--sentences": {"type": int, "metavar": "N", "default": 2000, "help": "number of sentences (default: 2000)"},
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
    "everyday": (print_everyday, "runs --device", {}),
    "survive": (check_survival, "run --sentences --device --json", {}),
    "multi-bleu": (print_multi_bleu, "translations references --plain --force", {}),
    "curves": (curves, "runs --picture", {}),
}


def refuse_overwriting(arguments: Namespace) -> None:
    """Refuse output files that are one another, or an input."""
    names = {name: name.removeprefix("--").replace("-", "_") for name in VERBS[arguments.verb][1].split()}
    given = {name: arguments[option] for name, option in names.items() if ARGUMENTS[name].get("type") is Path}
    for name in ("systems", "runs"):
        given |= {f"{name} {i}": path for i, path in enumerate(given.pop(name, []), 1)}
    outputs = {name: given.pop(name) for name in _OUTPUTS if name in given}
    require_outputs(outputs, given)


def main() -> None:
    """Read the arguments and run the verb."""
    arguments = build_parser().parse_args()
    refuse_overwriting(arguments)
    with sampling_seed(arguments.get("seed")):
        VERBS[arguments.verb][0](arguments)


if __name__ == "__main__":
    run_command("evaluate.py", main)
