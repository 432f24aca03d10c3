"""Score translations: `python evaluate.py run [RUN]`, or another verb; `curves` draws trainings."""

from utils.command import Parser, run_command
from utils.evaluation.metric import sampling_seed
from utils.evaluation.verbs import ARGUMENTS, VERBS, refuse_overwriting


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
  python evaluate.py file my.en test.en --tgt-lang en --html report.html
  python evaluate.py file my.ja test.ja --tgt-lang ja --sources test.en --json report.json
  python evaluate.py compare test.en before.en after.en --tgt-lang en --test randomization
  python evaluate.py compare test.en before.en after.en --tgt-lang en --html compared.html
  python evaluate.py nymwa my.tok.en corpus/kftt/tok/kyoto-test.en
  python evaluate.py nymwa pickles/RUN/test.txt corpus/kftt/tok/kyoto-test.en --plain
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


def main() -> None:
    """Read the arguments and run the verb."""
    arguments = build_parser().parse_args()
    refuse_overwriting(arguments)
    with sampling_seed(arguments.get("seed")):
        VERBS[arguments.verb][0](arguments)


if __name__ == "__main__":
    run_command("evaluate.py", main)
