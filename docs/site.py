"""The guide as a static site, with all that it links to: `make site`, which adds the live pages."""

import argparse
import os
import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name, guess_lexer_for_filename
from pygments.util import ClassNotFound

from const.path import ROOT
from utils.command import Parser, page_template, run_command
from utils.file import write_text

_LIVE = Path("live")  # the folder that `export.py --to web` writes
_READ = ["README", *(f"[{i}]-*" for i in range(10)), "solutions", "mistakes", "whole", "after_2017", "log", "articles"]
_EXPLAINER = ROOT / "utils/web/explorer.html"  # what links to it show is on the site a page that runs
_STYLES = [  # by day, by night; backgrounds are those of the page
    "\n".join(rule for rule in HtmlFormatter(style=style).get_style_defs(".code").splitlines() if ".code ." in rule)
    for style in ("friendly", "github-dark")
]


def _colored(code: str, name: str, _attributes: str = "") -> str:
    """Return code as HTML; it is in the language of this name, or of a file of this name."""
    try:
        lexer = guess_lexer_for_filename(name, code) if "." in name else get_lexer_by_name(name)
    except ClassNotFound:
        return Markup.escape(code)
    return highlight(code, lexer, HtmlFormatter(nowrap=True))


def _formula(latex: str, options: dict[str, bool]) -> str:
    latex = latex.replace(r"\arg", r"\operatorname{arg}")  # which the converter does not know
    return convert(latex, display="block" if options["display_mode"] else "inline")


_MARKDOWN = MarkdownIt("commonmark", {"html": False, "highlight": _colored}).enable("table")
_MARKDOWN.use(dollarmath_plugin, renderer=_formula)


def _place(file: Path) -> Path:
    """Return where on the site a file or a folder of this repository is."""
    name = file.relative_to(ROOT)
    if file == _EXPLAINER:
        return _LIVE / "explain.html"
    if file.is_dir() or file.name == "README.md":
        return (name if file.is_dir() else name.parent) / "index.html"
    endings = {".png": ".png", ".md": ".html"}
    return name.with_suffix(endings.get(file.suffix, f"{file.suffix}.html"))


def _all(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _all(token.children or [])


def _title(page: Path) -> str:
    headings = re.findall(r"^# (.+)$", page.read_text(encoding="utf-8"), re.M) if page.suffix == ".md" else []
    return headings[0] if headings else page.relative_to(ROOT).as_posix()


def _pages(lang: str) -> list[Path]:
    """Return the pages of the guide in the order in which they are read."""
    folder = ROOT / "docs" / (lang if lang == "ja" else "")
    return [page for name in [*_READ, "glossary"] for page in folder.glob(f"{name}.md")]


def _slug(heading: str) -> str:
    """Return what a link names after #, as GitHub writes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _index(pages: list[Path], place: Path, title: str) -> Markup:
    """Return the headings of pages, and the terms that are introduced (in bold) below each, with a field to search."""
    lines = []
    for page in pages:
        link, anchor = os.path.relpath(_place(page), place.parent), ""
        text = re.sub("^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        for line in re.sub(r"(?<=\S)\n(?=[^\n#|])", " ", text).splitlines():
            heading = re.match(r"(#+) (.+)", line) if not anchor or line.startswith("## ") else None
            other = " · " in line or re.match(r"\*\*(試す|Try it|\d)", line)  # languages, a live page, a solution
            terms = [] if other else re.findall(r"\*\*([^*。.]{2,40})\*\*", line)
            anchor = _slug(heading[2]) if heading else anchor
            for name in [heading[2].replace("`", "")] if heading else terms:
                tag = f"h{len(heading[1])}" if heading else "span"
                lines.append(Markup('<li><{0}><a href="{1}#{2}">{3}</a></{0}>').format(tag, link, anchor, name))
    whole = '<h1>{0}</h1><input type="search" aria-label="{0}" id="words" autofocus><ul id="index">{1}</ul>'
    return Markup(whole).format(title, Markup("\n").join(lines))


def _render(file: Path) -> tuple[str, set[Path]]:
    """Return the inside of the page of a file or a folder, and which others it leads to."""
    if file.is_dir():
        names = sorted(inside.name for inside in file.iterdir() if inside.name[0] not in "._")
        return "".join(f"<li>{name}</li>" for name in names), set()
    text, linked = file.read_text(encoding="utf-8"), set[Path]()
    if file.suffix != ".md":
        return f"<h1>{_title(file)}</h1><pre>{_colored(text, file.name)}</pre>", linked
    tokens = _MARKDOWN.parse(re.sub(r"^<!-- .* -->$", "", text, flags=re.M))  # marks for other programs
    for opened, inside in pairwise(tokens):
        if opened.type == "heading_open":
            opened.attrs["id"] = _slug(inside.content)
    for before, token in pairwise(_all(tokens)):
        if token.type == "softbreak" and before.content[-1:] > "\u2fff":
            token.type = "text"  # Japanese has no space between lines
        for name in {"href", "src"} & token.attrs.keys():
            target, mark, heading = str(token.attrs[name]).partition("#")
            if target and not re.match(r"\w+:", target):
                other = (file.parent / target).resolve()
                other = other / "README.md" if (other / "README.md").exists() else other
                token.attrs[name] = os.path.relpath(_place(other), _place(file).parent) + mark + heading
                linked.add(other)
    return _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}), linked


def write_site(folder: Path) -> None:
    """Write the pages of both languages, and all files of this repository that they lead to."""
    waiting, made = {ROOT / "README.md", ROOT / "README.ja.md", *(ROOT / "docs").rglob("*.md")}, {_EXPLAINER}
    while waiting:
        file = waiting.pop()
        made.add(file)
        place = folder / _place(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".png":
            shutil.copyfile(file, place)
            continue
        body, linked = _render(file)
        waiting |= linked - made
        _write(folder, _place(file), _title(file), body, "ja" if {"ja", "README.ja.md"} & {*file.parts[-2:]} else "en")
    for lang, title in {"en": "Index", "ja": "索引"}.items():
        place = Path("docs", "ja" if lang == "ja" else "", "terms.html")
        _write(folder, place, title, _index(_pages(lang), place, title), lang)


def _write(folder: Path, place: Path, title: str, body: str, lang: str) -> None:
    nav = [(os.path.relpath(_place(page), place.parent), _title(page), _place(page) == place) for page in _pages(lang)]
    top, live = (os.path.relpath(part, place.parent) for part in (Path(), _LIVE))
    values = {"lang": lang, "title": title, "nav": nav, "top": top, "live": live, "styles": _STYLES}
    write_text(folder / place, page_template(ROOT / "docs/site.html").render(body=Markup(body), **values))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = Parser(prog="docs.site", usage="python -m docs.site --output FOLDER", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder to write to")
    return parser


if __name__ == "__main__":
    run_command("docs.site", lambda: write_site(build_parser().parse_args().output))
