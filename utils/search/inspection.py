"""What models make of a translator's texts: probabilities, alternatives and alignments, of its own or given ones."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast
from unicodedata import normalize

import numpy as np

from const.token import EOS, UNK_ID
from utils.search.searcher import Ids, NetworkSearch
from utils.search.translation import Piece, Translation, perplexity
from utils.search.translator import Translator

if TYPE_CHECKING:  # with torch, which takes seconds to import, as inspecting with CTranslate2 need not
    from models.translation_model import TranslationModel
    from utils.dataset.masked import WholeWords
    from utils.search.forced import Links

Tokens = tuple[Sequence[int], Sequence[str]]  # ids, and how they are shown
Span = tuple[int, int]  # begin and end, in characters
SpanLinks = Sequence[tuple[Span, Span]]  # of source and translation
X = TypeVar("X")


class WordAlignment(NamedTuple):
    """The words of a pair, and links between them."""

    source: list[str]
    target: list[str]
    links: "Links"


def join_words(source: Tokens, target: Tokens, links: "Links", whole_words: "Sequence[WholeWords]") -> WordAlignment:
    """Join tokens to words, and link two where any of their tokens are linked; sorted by target, then by source word.

    Words are separated by spaces; in scripts without spaces each token is a word, since the text marks no others. A
    space that is a token by itself (SentencePiece's lone ▁) is not a word, and links to it are dropped.
    """
    sides = zip((source, target), whole_words, strict=True)
    (of_source, source_words), (of_target, target_words) = (_words(*side, whole) for side, whole in sides)
    pairs = {(of_source[i], of_target[j]) for i, j in links}
    linked = [(i, j) for i, j in pairs if i is not None and j is not None]
    return WordAlignment(source_words, target_words, sorted(linked, key=lambda link: (link[1], link[0])))


def _words(ids: Sequence[int], tokens: Sequence[str], whole_words: "WholeWords") -> tuple[list[int | None], list[str]]:
    """Return the place of the word that each token belongs to, None for a lone space; and the words."""
    numbers = whole_words.numbers(np.array(ids, np.int64)).tolist()
    words = [""] * (max(numbers, default=-1) + 1)
    for number, token in zip(numbers, tokens, strict=True):
        words[number] += "".join(token.replace("▁", "").split())  # an ideographic space is a token, not a word
    places = {number: place for place, number in enumerate(n for n, word in enumerate(words) if word)}
    return [places.get(number) for number in numbers], [word for word in words if word]


def _spans(tokens: Sequence[str], text: str, begin: int) -> list[Span]:
    """Return where each token stands in a text that begins there; empty for what does not, such as a language's tag."""
    places, owners = _letters(text), _letters(tokens)
    # they differ where unknown forms are read as known ones, or separated words are joined to plain text
    same = SequenceMatcher(None, [x for _, x in places], [x for _, x in owners], autojunk=False)
    spans = [(begin, begin)] * len(tokens)
    for at, token_at, n in same.get_matching_blocks():
        for (place, _), (owner, _) in zip(places[at : at + n], owners[token_at : token_at + n], strict=True):
            first, last = spans[owner]
            spans[owner] = (begin + place if first == last else first, begin + place + 1)
    return spans


def _letters(parts: Iterable[str]) -> list[tuple[int, str]]:
    """Return the letters of each part behind its number: without spaces, width and case, accents by themselves."""
    folded = [normalize("NFKD", part.replace("▁", "")).casefold() for part in parts]
    return [(i, letter) for i, letters in enumerate(folded) for letter in letters if not letter.isspace()]


class Score(NamedTuple):
    """The probability that the models assign to a translation."""

    tokens: list[str]  # of the target, with </s>
    log_probs: list[float]  # one for each token
    lost_tokens: int  # of source and target, beyond what the model can hold
    n_unknown: int  # target tokens that are not in the vocabulary

    @property
    def log_prob(self) -> float:
        """Log-probability of the whole translation."""
        return sum(self.log_probs)

    @property
    def perplexity(self) -> float:
        """Perplexity: exp of the mean negative log-probability of its tokens; 1 where there are none."""
        return perplexity(self.log_prob, len(self.tokens))


class Position(NamedTuple):
    """A position in a translation: the token that was generated there, and its alternatives."""

    number: int  # from 1
    token: str  # what was generated
    likeliest: list[tuple[str, float]]  # tokens and their log-probabilities, likeliest first


@dataclass
class Inspector:
    """Inspects the translations of a translator, and given ones."""

    translator: Translator
    models: "Sequence[TranslationModel]" = ()  # in single precision, several are an ensemble; none: nothing is aligned
    score: Callable[[Ids, Ids], list[list[float]]] | None = None  # log-probabilities of tokens; None: by the models

    def source_tokens(self, translations: Sequence[Translation]) -> list[list[str]]:
        """Return the tokens of each text that were translated; unknown ones as they stand in the text."""
        tokens = self.translator.source_tokens
        return [[*chain(*map(tokens, translation.pieces))] for translation in translations]

    def log_probs(self, translations: Sequence[Translation]) -> list[list[float]]:
        """Return the log-probability of each token of the best translations, with an </s> behind each piece."""
        return [[p for _, piece in of_text for p in piece] for of_text in self._by_piece(self._log_probs, translations)]

    def alignments(self, translations: Sequence[Translation]) -> "list[Links]":
        """Return the alignments of the best translations; positions go on from piece to piece."""
        alignments = []
        for pieces in self._by_piece(self._links, translations):
            links, source, target = [], 0, 0
            for piece, of_piece in pieces:
                links += [(source + i, target + j) for i, j in of_piece]
                source, target = source + len(piece.ids), target + len(piece.best.tokens)
            alignments.append(links)
        return alignments

    def words(self, translations: Sequence[Translation]) -> list[WordAlignment]:
        """Return the words of each text and of its best translation; what was left unchanged is linked to itself."""
        alignments, n_tags = [], len(self.translator.tokenizers.tags)
        for pieces in self._by_piece(self._links, translations):
            whole = WordAlignment([], [], [])
            for piece, links in pieces:
                if piece.ids:
                    source = piece.ids[n_tags:], self.translator.source_tokens(piece)[n_tags:]
                    target = piece.best.ids, piece.best.tokens
                    part = join_words(source, target, [(i - n_tags, j) for i, j in links], self._whole_words)
                else:
                    words = (piece.source or piece.gap).split()
                    part = WordAlignment(words, words, [(i, i) for i in range(len(words))])
                n_source, n_target = len(whole.source), len(whole.target)
                whole.links.extend((n_source + i, n_target + j) for i, j in part.links)
                whole.source.extend(part.source)
                whole.target.extend(part.target)
            alignments.append(whole)
        return alignments

    def span_links(self, texts: Sequence[str], translations: Sequence[Translation]) -> list[SpanLinks]:
        """Return the alignments as links between the characters of each text and of its best translation."""
        links_of_texts = list[SpanLinks]()
        for text, pieces in zip(texts, self._by_piece(self._links, translations), strict=True):
            links, begin, end, of_target = list[tuple[Span, Span]](), 0, 0, 0
            for piece, of_piece in pieces:
                begin = text.index(piece.source, end)
                end = begin + len(piece.source)
                source = _spans(self.translator.source_tokens(piece), piece.source, begin)
                target = _spans(piece.best.tokens, piece.best.text, of_target)
                links += [(source[i], target[j]) for i, j in of_piece if source[i][0] < source[i][1]]
                of_target += len(piece.best.text + piece.gap)
            links_of_texts.append(links)
        return links_of_texts

    @cached_property
    def _whole_words(self) -> "list[WholeWords]":  # on first use, because it goes through the vocabularies
        from utils.dataset.masked import WholeWords

        return [*map(WholeWords, self.translator.tokenizers)]

    def scores(self, texts: Sequence[str], given: Sequence[str]) -> list[Score]:
        """Score given translations by forced decoding; an empty translation of an empty text has no tokens."""
        src, tgt = self.translator.tokenizers
        all_sources, all_targets = src.encode(texts), tgt.encode(given)
        sources = [ids[: self.translator.window - 1] for ids in all_sources]
        targets = [ids[: self.translator.longest - 1] for ids in all_targets]
        scores = []
        for i, log_probs in enumerate(self._log_probs(sources, targets)):
            source, target = sources[i], targets[i]
            lost = len(all_sources[i]) - len(source) + len(all_targets[i]) - len(target)
            score = Score([*tgt.tokens(target), EOS], log_probs, lost, target.count(UNK_ID))
            scores.append(score if source or target else Score([], [], 0, 0))
        return scores

    def positions(self, translation: Translation, k: int, prefix: str = "") -> list[Position]:
        """Return the k likeliest tokens at each position of a translation, or only at the one after a prefix."""
        pieces = [piece for piece in translation.pieces if piece.ids]
        if not pieces:
            raise ValueError("there is nothing that the model has translated: give a sentence to see its alternatives")
        from utils.search.forced import alternatives

        searched, tgt = cast(NetworkSearch, self.translator.searcher), self.translator.tokenizers.tgt
        begin = len(tgt.encode([prefix])[0]) if prefix else 0
        end = begin + 1 if prefix else None
        rows: list[tuple[str, list[tuple[int, float]]]] = []
        for piece in pieces[:1] if prefix else pieces:
            likely = alternatives(searched.model, piece.ids, piece.best.ids[:end], k, searched.device)
            rows += zip([*piece.best.tokens[:end], EOS], likely, strict=True)
        return [
            Position(number, token, [(tgt.tokens([i])[0], log_prob) for i, log_prob in likeliest])
            for number, (token, likeliest) in enumerate(rows[begin:end], begin + 1)
        ]

    def _by_piece(
        self, measure: Callable[[Ids, Ids], list[list[X]]], translations: Sequence[Translation]
    ) -> list[list[tuple[Piece, list[X]]]]:
        """Measure each piece of each best translation by its source and target ids; nothing for one left unchanged."""
        known = [piece for of_text in translations for piece in of_text.pieces if piece.ids]
        measured = iter(measure([piece.ids for piece in known], [piece.best.ids for piece in known]))
        return [[(piece, next(measured) if piece.ids else []) for piece in of_text.pieces] for of_text in translations]

    def _log_probs(self, sources: Ids, targets: Ids) -> list[list[float]]:
        if self.score is not None:
            return self.score(sources, targets)
        from utils.search.forced import mean_log_probs

        return mean_log_probs(self.models, sources, targets)

    def _links(self, sources: Ids, targets: Ids) -> "list[Links]":
        if not self.models:
            return [[] for _ in sources]
        from utils.search.forced import align

        return align(self.models, sources, targets, len(self.translator.tokenizers.tags))
