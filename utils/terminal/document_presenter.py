"""Lines to write about the sentences of documents, of which each is chosen by those before it."""

from collections.abc import Callable, Sequence

from utils.search.document_rescorer import DocumentRescorer, Origin, Rescored
from utils.search.inspection import Inspector
from utils.search.translator import Translation
from utils.terminal.presentation import DIGITS
from utils.terminal.presenter import Presenter, Shown


class DocumentPresenter(Presenter):
    """Writes about lots of lines; an empty one ends a document.

    Args:
        inspector: asks the models.
        shown: what is asked for.
        say: is told what a reader must know, with the number of its line.
        rescorer: chooses among as many candidates as the beam is wide.
    """

    def __init__(
        self, inspector: Inspector, shown: Shown, say: Callable[[str], object], rescorer: DocumentRescorer
    ) -> None:
        super().__init__(inspector, shown, say)
        self.rescorer = rescorer
        self._origins: list[list[Origin]] = []  # of the latest lot

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
        """With what each candidate was before."""
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
