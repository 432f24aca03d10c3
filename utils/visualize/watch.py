"""A page on which a translator learns: what it makes of some dev sentences at each validation, and how it gets there.

The records are lines of JSON, which a resumed training continues; the page is made of them anew each time.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from const.token import EOS
from models.recurrent import EncoderDecoder
from utils.dataset.text import ParallelText
from utils.run import WATCH_PAGE, WATCHED
from utils.search.forced import attention_weights
from utils.search.translator import Translator
from utils.training.plan import Progress
from utils.training.report import JsonLines, Validation, read_log, spread
from utils.visualize.attention import PARTS, Pair, write_page
from utils.visualize.explain import listed_guesses


def easy_to_follow(text: ParallelText, n: int) -> ParallelText:
    """Return n sentences of the shorter half of a text, the shortest first."""
    by_length = sorted((i for i, source in enumerate(text.src) if source.strip()), key=lambda i: len(text.src[i]))
    chosen = spread(by_length[: max(n, len(by_length) // 2)], n)
    return ParallelText([text.src[i] for i in chosen], [text.tgt[i] for i in chosen])


class Watch(JsonLines):
    """Keeps the translation, the cross-attention and each layer's guesses of some sentences; redraws the page.

    A training that is at step 0 begins with those of the network that has learned nothing yet.

    Args:
        translator: returns a translator with the network's current weights.
        languages: codes of source and target.
    """

    def __init__(
        self,
        folder: Path,
        step: int,
        text: ParallelText,
        translator: Callable[[], Translator],
        languages: tuple[str, str],
    ) -> None:
        super().__init__(folder / WATCHED, step or -1)  # a training that has not made an update begins the file anew
        self._folder, self._text, self._translator, self._languages = folder, text, translator, languages
        if not step:
            self._keep(Progress(), {})

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Keep what the network makes of the sentences now."""
        self._keep(progress, {"loss": validation.loss, **validation.scores})

    def _keep(self, progress: Progress, scores: Mapping[str, float]) -> None:
        translator = self._translator()
        sources = [ids[: translator.window - 1] for ids in translator.tokenizers.src.encode(self._text.src)]
        targets = [best.ids for best, *_ in translator.search_ids(sources)]
        pairs = zip(self._text.src, self._text.tgt, sources, targets, strict=True)
        self.write("dev", progress, {**scores, "sentences": [_seen(translator, *pair) for pair in pairs]})
        records = [record for _, record in read_log(self._folder / WATCHED)]
        # a run that is resumed with another number of sentences, or another text, has earlier records of others
        texts = [[sentence["source"] for sentence in record["sentences"]] for record in records]
        data = {
            "parts": PARTS,
            "languages": self._languages,
            "frames": [record for record, sources in zip(records, texts, strict=True) if sources == texts[-1]],
        }
        run = self._folder.resolve().name
        write_page("watch.html", data, Pair("", "", *self._languages, run), self._folder / WATCH_PAGE)


def _seen(translator: Translator, text: str, reference: str, source: list[int], target: list[int]) -> dict[str, Any]:
    """Return what the page shows of a sentence; attention is the mean over the heads of each layer."""
    model, (src, tgt) = cast(EncoderDecoder, translator.model), translator.tokenizers
    return {
        "source": text,
        "reference": reference,
        "translation": tgt.decode([target])[0],
        "read": [*src.tokens(source), EOS],
        "said": [*tgt.tokens(target), EOS],
        "cross": [
            (weights.mean(0) * PARTS).round().int().tolist()
            for weights in attention_weights(model, source, target)["cross"]
        ],
        "guesses": listed_guesses(model, source, target, tgt),
    }
