"""The protocol of github.com/nymwa/kftt_jaen_example: KFTT's `tok` references, lower case, Moses' multi-bleu.perl."""

import re
from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU

TEST_LINES, TEST_WORDS = 1160, 26_734  # size of KFTT's tok/kyoto-test.en

_SPACE_TO_PYTHON_ALONE = re.compile(r"[^\S \t\n\r\f\v]")


def multi_bleu(translations: Sequence[str], references: Sequence[str]) -> str:
    """Return the line that `multi-bleu.perl` prints for lower-cased text: BLEU-4 of words between spaces, unsmoothed.

    Args:
        translations: tokenized, one per line.
        references: tokenized, one for each translation.
    """
    bleu = BLEU(tokenize="none", lowercase=True, smooth_method="none", force=True)
    # Perl reads bytes: to it, an ideographic or a no-break space is part of a word
    ours, theirs = ([_SPACE_TO_PYTHON_ALONE.sub("␣", line) for line in side] for side in (translations, references))
    score = bleu.corpus_score(ours, [theirs])
    precisions = "/".join(f"{precision:.1f}" for precision in score.precisions)
    return (
        f"BLEU = {score.score:.2f}, {precisions} (BP={score.bp:.3f}, ratio={score.ratio:.3f}, "
        f"hyp_len={score.sys_len}, ref_len={score.ref_len})"
    )


def moses_words(lines: Sequence[str]) -> list[str]:
    """Tokenize plain English like KFTT's `tok`: with Moses' tokenizer.perl, without escaping.

    Of the 1,160 lines of the test set's `orig` text, 1,140 become those of `tok`; the rest differ in kanji, which only
    newer versions of the script separate.
    """
    from sacremoses import MosesTokenizer  # slow to import, and not needed by other verbs

    cut = MosesTokenizer(lang="en").tokenize
    return [cut(line, escape=False, return_str=True) for line in lines]


def is_published_test(references: Sequence[str]) -> bool:
    """Return whether these may be the references of the published score (22.29, fairseq, 20 epochs)."""
    return (len(references), sum(len(line.split()) for line in references)) == (TEST_LINES, TEST_WORDS)
