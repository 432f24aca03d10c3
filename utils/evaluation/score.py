"""BLEU and chrF by sacreBLEU (Post 2018), with the tokenizer that the target language needs."""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from utils.text.script import primary_language

OWN_TOKENIZER = {"ja": "ja-mecab", "zh": "zh", "ko": "ko-mecab"}  # of languages whose words 13a does not find


class Scores(NamedTuple):
    """Two scores of the same translations, 0 to 100, and how they were counted."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


def bleu_tokenizer(tgt_lang: str, pre_tokenized: bool) -> str:
    """sacreBLEU's name of the tokenizer: words of Japanese are not found by spaces, so 13a never fits it."""
    if pre_tokenized:
        return "none"
    return OWN_TOKENIZER.get(primary_language(tgt_lang), "13a")


def score(translations: Sequence[str], references: Sequence[str], tgt_lang: str, pre_tokenized: bool) -> Scores:
    """Score translations against one reference each; neither is changed before sacreBLEU sees it.

    Raises:
        ValueError: there is not one reference for each translation, or none at all.
    """
    if len(translations) != len(references) or not references:
        raise ValueError(
            f"{len(translations)} translations against {len(references)} references: one for each is needed"
        )
    bleu = BLEU(tokenize=bleu_tokenizer(tgt_lang, pre_tokenized), force=pre_tokenized)
    chrf = CHRF()
    return Scores(
        bleu.corpus_score(list(translations), [list(references)]).score,
        chrf.corpus_score(list(translations), [list(references)]).score,
        str(bleu.get_signature()),
        str(chrf.get_signature()),
    )
