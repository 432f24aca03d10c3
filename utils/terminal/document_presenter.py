"""Output lines for the sentences of documents, each translation chosen given those before it."""

from collections.abc import Callable, Sequence

from utils.search.document_rescorer import DocumentRescorer, Origin, Rescored
from utils.search.inspection import Inspector
from utils.search.translator import Translation
from utils.terminal.presentation import DIGITS
from utils.terminal.presenter import Presenter, Shown


class DocumentPresenter(Presenter):
    """Formats output for chunks of lines; a blank line ends a document.

    Args:
        inspector: queries the models.
        shown: what to show.
        say: called with notices for the reader, which name their lines.
        rescorer: chooses among all candidates of the beam.
        tokenized: see `Presenter`.
    """

    def __init__(
        self,
        inspector: Inspector,
        shown: Shown,
        say: Callable[[str], object],
        rescorer: DocumentRescorer,
        tokenized: bool = False,
    ) -> None:
        super().__init__(inspector, shown, say, tokenized)
        self.rescorer = rescorer
        self._origins: list[list[Origin]] = []  # for the latest chunk

    def _translate(
        self, texts: Sequence[str], on_progress: Callable[[int], object] = lambda _: None, first: int = 1
    ) -> list[Translation]:
        translator = self.inspector.translator
        found = translator.translate(
            texts, n_best=translator.search.beam_size, prefixes=self._prefixes(texts), first=first
        )
        chosen: list[Rescored] = []
        for text, translation in zip(texts, found, strict=True):
            if not text.strip():
                self.rescorer.new_document()
            chosen.append(self.rescorer.rescore(translation).best(self.shown.n_best))
            on_progress(1)
        self._origins = [rescored.origins for rescored in chosen]
        return [rescored.translation for rescored in chosen]

    def _records(self, texts: Sequence[str], found: Sequence[Translation]) -> list[dict[str, object]]:
        """Add the rank and the scores that each candidate had before rescoring."""
        rows = super()._records(texts, found)
        for row, origins in zip(rows, self._origins, strict=True):
            row.update(_origin(origins[0]))
            if isinstance(n_best := row.get("n_best"), list):
                for candidate, origin in zip(n_best, origins, strict=True):
                    candidate.update(_origin(origin))
        return rows


def _origin(origin: Origin) -> dict[str, object]:
    return {
        "rank_before": origin.rank,
        "score_before": round(origin.score, DIGITS),
        "language_log_prob": None if origin.log_prob is None else round(origin.log_prob, DIGITS),
    }
