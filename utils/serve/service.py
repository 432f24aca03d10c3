"""Which of the served runs translates a text, and how: the choice of a run, a queue for each, and limits."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.exceptions import HTTPException

from config.data import primary_language
from config.search import Hypothesis, Limits, SearchConfig
from const.token import EOS
from utils.run import reading_best
from utils.search.inspection import Inspector, SpanLinks
from utils.search.markup import Markup
from utils.search.searcher import BeamSearch, Request, Searcher
from utils.search.translation import Translation
from utils.serve.batcher import Batcher, Step, Turns
from utils.serve.server import Metrics
from utils.terminal.output import SourceText
from utils.text.language import Detected, detect

if TYPE_CHECKING:
    from models.translation_model import TranslationModel

AUTO = "auto"  # in place of a language code: any language
MAX_BEAM = 16
_USUAL_BEAM = 4
_WEIGHT_DIGITS = 3  # less than a thousandth is invisible
_MAX_WEIGHTS = 500_000  # that are returned for a batch: some MB of JSON, for which all requests wait


class Options(NamedTuple):
    """How to translate. Without a beam, it is the run's own, or `n_best` if that is larger."""

    beam: int | None = None
    n_best: int = 1
    attention: bool = False
    links: bool = False
    tag: str | None = None  # before the texts; "": none; None: the run's own

    def weight(self) -> int:
        """How many times a usual search takes to search like this."""
        return max(1, max(self.beam or 1, self.n_best) // _USUAL_BEAM)


class Line(NamedTuple):
    """A translated line, with the weights of the tokens of each candidate of each piece over those of its source.

    There are none if they are not requested, or if the batch has too many; and no links if they are not requested.
    """

    translation: Translation
    source_tokens: list[list[str]]  # of each piece, with a final </s>
    attention: list[list[list[list[float]]]]
    links: SpanLinks = ()  # between the line and its best translation


@dataclass(frozen=True)
class _InTurn:
    """A searcher that calls a function before each batch: an exception of that ends the search."""

    searcher: Searcher
    step: Step

    @property
    def tokens_per_batch(self) -> int:
        return self.searcher.tokens_per_batch

    def __call__(self, requests: Sequence[Request], config: SearchConfig, n_best: int | None) -> list[list[Hypothesis]]:
        self.step()
        return self.searcher(requests, config, n_best)


def translate_lines(
    inspector: Inspector, lines: Sequence[str], options: Options, step: Step = lambda: None
) -> list[Line]:
    """Translate lines, all with the same options.

    Args:
        inspector: of the run, with its own settings, and of its model in single precision, not shared with the
            translator. What was exported has none, and no attention or links.
        lines: texts without line breaks.
        options: of the search, and what else to return.
        step: called before each step of the search, or each batch of what was exported; an exception ends it.
    """
    translator = inspector.translator
    search, tokenizers, searcher = translator.search, translator.tokenizers, translator.searcher
    search = replace(search, beam_size=options.beam or max(search.beam_size, options.n_best))
    tokenizers = tokenizers if options.tag is None else tokenizers.with_tag(options.tag)
    if isinstance(searcher, BeamSearch):
        from utils.search.constraint import Interruptible  # with torch, which what was exported goes without

        searcher = replace(searcher, model=Interruptible(searcher.model, step))
    else:
        searcher = _InTurn(searcher, step)
    translator = replace(translator, searcher=searcher, search=search, tokenizers=tokenizers)
    translations, tokens = translator.translate(lines, n_best=options.n_best), translator.source_tokens
    step()
    inspector = replace(inspector, translator=translator)
    links = inspector.span_links(lines, translations) if options.links else [()] * len(lines)
    translated = [
        Line(translation, [[*tokens(piece), EOS] for piece in translation.pieces], [[] for _ in translation.pieces], of)
        for translation, of in zip(translations, links, strict=True)
    ]
    step()
    if options.attention and inspector.models and inspector.models[0].config.has_cross_attention:
        _add_attention(translated, inspector.models)
    return translated


def _add_attention(lines: Sequence[Line], models: "Sequence[TranslationModel]") -> None:
    from utils.search.forced import mean_cross_attention

    weights, sources, targets, n_weights = [], [], [], 0
    for line in lines:
        for piece, of_piece in zip(line.translation.pieces, line.attention, strict=True):
            size = (len(piece.ids) + 1) * sum(len(candidate.tokens) for candidate in piece.candidates)
            if piece.ids and n_weights + size <= _MAX_WEIGHTS:
                n_weights += size
                for candidate in piece.candidates:
                    weights.append(of_piece)
                    sources.append(piece.ids)
                    targets.append(candidate.ids)
    for of_piece, matrix in zip(weights, mean_cross_attention(models, sources, targets), strict=True):
        of_piece.append([[round(weight, _WEIGHT_DIGITS) for weight in row] for row in matrix.tolist()])


class ServedRun(NamedTuple):
    """A run that is served, with codes of languages without regions; `translate` is called in a separate thread."""

    name: str
    src_lang: str
    tgt_lang: str
    beam: int  # of its own search settings
    translate: Callable[[Sequence[str], Options, Step], list[Line]]
    log_prob: Callable[[str], float] = lambda _: 0.0  # of a text by its vocabulary: the run reads it well
    examples: Sequence[str] = ()  # sentences of the kind that it learned from
    tags: Sequence[str] = ()  # that its vocabulary has for kinds of text

    @property
    def direction(self) -> str:
        """Translation direction, for display."""
        return f"{self.src_lang}→{self.tgt_lang}"


@dataclass
class Text:
    """A text of a request, and what becomes of it."""

    text: str
    markup: Markup | None = None  # of HTML
    run: ServedRun | None = None  # none: the text is in the language to translate into already
    detected: Detected | None = None
    lines: Sequence[Line] = ()

    @property
    def parts(self) -> list[str]:
        """What is to be translated of it."""
        return [self.text] if self.markup is None else [part.text for part in self.markup.texts]

    @property
    def rows(self) -> list[str]:
        """The lines of those."""
        return [line for part in self.parts for line in part.replace("\r\n", "\n").split("\n")]

    def remarks(self) -> dict[str, Any]:
        """Return what the reader of its translation should know: `Translation.remarks`, and what concerns all of it."""
        of_lines = [line.translation.remarks for line in self.lines] or [Translation([], [], []).remarks]
        said = {name: [of_line[name] for of_line in of_lines] for name in of_lines[0]}
        joined = {
            name: [*dict.fromkeys(chain(*each))] if isinstance(each[0], list) else next(filter(None, each), each[0])
            for name, each in said.items()
        }
        is_other = bool(self.run and not self.detected and SourceText(self.run.src_lang).notices(self.parts))
        return joined | {"other_language": is_other, "lost_tags": sorted(self.markup.lost) if self.markup else []}

    def translations(self) -> list[str]:
        """Return the best of each line, then the second best where there is one, and so on; of HTML, only the best."""
        if self.run is None:
            return [self.text]
        if self.markup is not None:  # its parts are a line each
            return [self.markup.filled([(line.translation.text, line.links) for line in self.lines])]
        candidates = [line.translation.candidates for line in self.lines]
        return [
            "\n".join(of_line[min(rank, len(of_line) - 1)].text for of_line in candidates)
            for rank in range(max(map(len, candidates)))
        ]


class Service:
    """Runs that translate requests, once their batchers are entered, `n_at_once` batches of all of them at a time.

    Of several runs with the same direction, the one that reads a text best is used unless another is named.
    """

    def __init__(self, runs: Sequence[ServedRun], limits: Limits, n_at_once: int = 1) -> None:
        self.runs, self.limits, self.metrics = runs, limits, Metrics()
        self.batchers: dict[str, Batcher[Options, Line]] = {}
        turns = Turns(n_at_once)
        for run in runs:
            if run.name in self.batchers:
                raise ValueError(f"two runs are called {run.name}, but runs are chosen by name: rename one")
            count = self.metrics.batches.labels(run.name).observe
            batcher = self.batchers[run.name] = Batcher(run.translate, limits, count, Options.weight, turns)
            self.metrics.waiting.labels(run.name).set_function(batcher.n_waiting)

    @property
    def languages(self) -> list[str]:
        """All languages on either side, those to translate from first."""
        return list(dict.fromkeys([run.src_lang for run in self.runs] + [run.tgt_lang for run in self.runs]))

    def targets(self, language: str) -> list[str]:
        """Return the languages that a text of this one can be had in: itself, too, for it is left as it is."""
        return list(dict.fromkeys([*(run.tgt_lang for run in self.runs if run.src_lang == language), language]))

    def choose_if_needed(self, text: str, source: str, target: str) -> tuple[ServedRun | None, Detected | None]:
        """Choose the run for a text as `choose` does; none if it is in the language to translate into already."""
        for code in (source, target):
            if not any(_fits(code, language) for language in self.languages):
                raise HTTPException(400, f"{code} is not supported")  # as LibreTranslate says it
        detected = detect(text, self.languages) if source.lower() == AUTO else None
        language = detected.language if detected else source
        if language.lower() != AUTO and _same(language, target):
            return None, detected
        return self.choose(text, source, target)

    def choose(
        self, text: str, source: str = AUTO, target: str = AUTO, name: str | None = None
    ) -> tuple[ServedRun, Detected | None]:
        """Choose the run for a text, or answer 400; also return the language if it had to be detected."""
        directions = ", ".join(dict.fromkeys(run.direction for run in self.runs))
        if name not in (None, *self.batchers):
            raise HTTPException(400, f"no run {name!r} is served: choose from {', '.join(self.batchers)}")
        fitting = [
            run
            for run in self.runs
            if name in (None, run.name) and _fits(source, run.src_lang) and _fits(target, run.tgt_lang)
        ]
        if not fitting:
            which = f"run {name}" if name else "run"
            raise HTTPException(400, f"no {which} translates {source}→{target}: choose from {directions}")
        if source.lower() != AUTO or name is not None:
            return _reading_best(fitting, text), None
        detected = detect(text, list(dict.fromkeys(run.src_lang for run in fitting)))
        if detected is None:
            cannot = f"the language of the text cannot be translated {AUTO}→{target}"
            raise HTTPException(400, f"{cannot}: choose from {directions}")
        return _reading_best([run for run in fitting if run.src_lang == detected.language], text), detected

    async def translate(self, texts: Sequence[Text], options: Options, client: str = "") -> None:
        """Translate the texts of one request that have a run, line by line; all, or none with status 400 or 503."""
        of_runs = defaultdict[str, list[str]](list)
        for text in texts:
            if text.run is not None:
                if options.tag and options.tag not in text.run.tags:
                    known = ", ".join(text.run.tags) or "none"
                    raise HTTPException(400, f"tag={options.tag}, but run {text.run.name} knows {known}: leave it out")
                of_runs[text.run.name] += text.rows
        answers: dict[str, asyncio.Future[list[Line]]] = {}
        try:
            self.refuse_dead(of_runs)
            for name, lines in of_runs.items():
                self._refuse_too_slow(self.batchers[name], lines, options, client)
                answers[name] = self.batchers[name].enter(lines, options, client)
            await asyncio.gather(*answers.values())
        except asyncio.QueueFull:
            busy = "too many texts are waiting: try again in a moment"
            raise HTTPException(503, busy, {"Retry-After": "1"}) from None
        finally:
            for answer in answers.values():
                answer.cancel()  # takes abandoned texts out of the queue
        rest = {name: iter(answer.result()) for name, answer in answers.items()}
        for text in texts:
            text.lines = [*islice(rest[text.run.name], len(text.rows))] if text.run else ()

    def refuse_dead(self, names: Iterable[str]) -> None:
        """Refuse with status 503 if one of these runs has stopped, by a fault of this program."""
        if dead := [name for name in names if not self.batchers[name].is_alive]:
            raise HTTPException(503, f"{', '.join(dead)} has stopped translating: start the server again")

    def _refuse_too_slow(
        self, batcher: Batcher[Options, Line], lines: Sequence[str], options: Options, client: str
    ) -> None:
        """Refuse lines that cannot be translated in time, by what others have taken, with what they would take."""
        limit, n_chars = self.limits.timeout_s, sum(map(len, lines))
        if (alone := batcher.seconds(lines, options)) > limit:
            takes = f"{n_chars:,} characters take about {alone:.0f} seconds, and a request may take {limit:g}"
            raise HTTPException(400, f"{takes}: send at most {int(n_chars * limit / alone):,} at a time")
        if (until := batcher.seconds_until(lines, options, client)) > limit:
            wait = str(math.ceil(until - limit))
            busy = f"with those before it, this would take about {until:.0f} seconds, and a request may take {limit:g}"
            raise HTTPException(503, f"{busy}: try again in {wait}", {"Retry-After": wait})

    def refuse_too_much(self, texts: Sequence[Text]) -> None:
        """Refuse texts over the limits with status 400; call this before doing anything else with a request."""
        lines = [line for text in texts for line in text.rows]
        for n, max_n, unit in (
            (len(lines), self.limits.max_texts, "lines"),
            (sum(map(len, lines)), self.limits.max_chars, "characters"),
        ):
            if n > max_n:
                raise HTTPException(400, f"{n:,} {unit} exceed the limit of {max_n:,}: send them in parts")


def _reading_best(runs: Sequence[ServedRun], text: str) -> ServedRun:
    """Return the run that is to read a text, of those into the same language as the first: as translate.py chooses."""
    runs = [run for run in runs if run.tgt_lang == runs[0].tgt_lang]
    if len(runs) == 1:
        return runs[0]
    name = reading_best({run.name: run.log_prob(text) for run in runs})
    return next(run for run in runs if run.name == name)


def _same(code: str, language: str) -> bool:
    return primary_language(code) == primary_language(language)


def _fits(code: str, language: str) -> bool:
    return code.lower() == AUTO or _same(code, language)
