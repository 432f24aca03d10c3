"""evaluate.py nymwa: scores by the protocol of nymwa/kftt_jaen_example."""

from pathlib import Path

from jsonargparse import Namespace

from utils.command_line import Parser
from utils.evaluation.plausibility import refuse_same
from utils.evaluation.protocol import TEST_LINES, TEST_WORDS, is_published_test, moses_words, multi_bleu
from utils.scoring.files import read_aligned
from utils.scoring.verb import Verb, warn
from utils.text.spacing import looks_tokenized


def nymwa_options(parser: Parser) -> None:
    """Add the options of `nymwa`."""
    parser.add_argument("translations", type=Path, help="translations of KFTT's test set, UTF-8")
    parser.add_argument("references", type=Path, help="tok/kyoto-test.en of KFTT")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="the translations are plain text: tokenize them like the references, with Moses",
    )
    parser.add_argument("--force", action="store_true", help="score even if the texts look wrong")


def score_as_nymwa(arguments: Namespace) -> None:
    """Print the score in the format of multi-bleu.perl."""
    translations, references = read_aligned([arguments.translations, arguments.references])
    if not arguments.force:
        refuse_same(
            {f"TRANSLATIONS {arguments.translations}": translations, f"REFERENCES {arguments.references}": references}
        )
    if not is_published_test(references):
        warn(
            f"{arguments.references} is not tok/kyoto-test.en of KFTT ({TEST_LINES:,} lines, {TEST_WORDS:,} words): "
            "the score is not comparable with scores on the test set"
        )
    if arguments.plain:
        translations = moses_words(translations)
    elif looks_tokenized(references) and not looks_tokenized(translations):
        warn(
            f"{arguments.translations} is not tokenized, but {arguments.references} is: "
            "every word before a full stop or comma counts as wrong; give --plain to tokenize it"
        )
    print(multi_bleu(translations, references))


NYMWA = Verb(
    "TRANSLATIONS REFERENCES [--plain]",
    "score as nymwa/kftt_jaen_example does: multi-bleu.perl of lower-cased tokens",
    nymwa_options,
    score_as_nymwa,
)
