"""HTML as a text to translate: what stands between tags is translated, the tags stay where they are.

A tag inside a sentence (`I <b>love</b> Kyoto`) has no certain place in its translation: it is left out, and said.
"""

import re
from html import escape
from html.parser import HTMLParser
from typing import NamedTuple

_INLINE = re.compile("a|abbr|b|bdi|bdo|cite|em|font|i|ins|kbd|label|mark|q|s|small|span|strong|su[bp]|time|u|var")
_VERBATIM = ("code", "pre", "script", "style", "textarea")


class _Tag(NamedTuple):
    raw: str
    name: str
    is_end: bool


class Markup(HTMLParser):
    """An HTML text, taken apart: `texts` are to be translated, `lost` are the names of tags that cannot be kept."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.lost: set[str] = set()
        self._parts: list[str | int] = []  # markup as it was, and numbers of texts
        self._run: list[str | _Tag] = []  # text and inline tags since the last other tag
        self._verbatim = 0  # depth inside elements that are not translated
        self.feed(html)
        self.close()
        self._end_run()

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002 (the signature is Python's)
        """Keep a tag, or note it inside the text."""
        self._verbatim += tag in _VERBATIM
        self._take(_Tag(self.get_starttag_text() or "", tag, is_end=False))

    def handle_startendtag(self, tag: str, attrs: object) -> None:  # noqa: ARG002 (as above)
        """Keep `<br/>` and the like."""
        self._keep(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        """Keep a tag, or note it inside the text."""
        self._take(_Tag(f"</{tag}>", tag, is_end=True))
        self._verbatim -= tag in _VERBATIM and self._verbatim > 0

    def handle_data(self, data: str) -> None:
        """Collect text."""
        if self._verbatim:
            self._keep(data if self.cdata_elem else escape(data, quote=False))
        else:
            self._run.append(data)

    def handle_comment(self, data: str) -> None:
        """Keep a comment."""
        self._keep(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        """Keep the document's type."""
        self._keep(f"<!{decl}>")

    def _take(self, tag: _Tag) -> None:
        if _INLINE.fullmatch(tag.name) and not self._verbatim:
            self._run.append(tag)
        else:
            self._keep(tag.raw)

    def _keep(self, raw: str) -> None:
        self._end_run()
        self._parts.append(raw)

    def _end_run(self) -> None:
        """Make one text of what was collected; tags around all of it are kept."""
        run, self._run = self._run, []
        places = [i for i, part in enumerate(run) if isinstance(part, str) and part.strip()]
        if not places:
            self._parts += [part if isinstance(part, str) else part.raw for part in run]
            return
        before, inside, behind = run[: places[0]], run[places[0] : places[-1] + 1], run[places[-1] + 1 :]
        if not _is_balanced(inside):  # some of the tags around the text belong to those inside it
            before, inside, behind = [], run, []
        text = "".join(part for part in inside if isinstance(part, str))
        self.lost |= {part.name for part in inside if isinstance(part, _Tag)}
        self._parts += [part if isinstance(part, str) else part.raw for part in before]
        self._parts += [text[: len(text) - len(text.lstrip())], len(self.texts), text[len(text.rstrip()) :]]
        self._parts += [part if isinstance(part, str) else part.raw for part in behind]
        self.texts.append(" ".join(text.split()))

    def filled(self, translations: list[str]) -> str:
        """Return the HTML with these translations in the place of its texts."""
        return "".join(
            part if isinstance(part, str) else escape(translations[part], quote=False) for part in self._parts
        )


def _is_balanced(parts: list[str | _Tag]) -> bool:
    depth = 0
    for part in parts:
        if isinstance(part, _Tag):
            depth += -1 if part.is_end else 1
            if depth < 0:
                return False
    return depth == 0
