"""Pages that translate in a browser: graphs, vocabularies, and a worker in place of the server."""

import gzip
import json
import re
import shutil
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from unicodedata import combining, name

from google.protobuf.json_format import MessageToDict
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # made on import

from config import data
from config.data import primary_language
from config.search import Limits
from const.path import ROOT
from utils.command import content_policy, page_template, script_of
from utils.export import CARD
from utils.export.graph import FACTS, WEIGHTS, Traced, write_graphs, write_network
from utils.file import read_json, write_json, write_text
from utils.load import load_run
from utils.run import nearness
from utils.search import glossary
from utils.text import capitals, form, language, loop, number, protected, sentence, structure
from utils.text.words import WORDS
from utils.training.checkpoint import read_weights

Facts = dict[str, Any]
PACKAGE, VERSION = "onnxruntime-web", "1.30.0"  # with which the tests are made
RUNTIME = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
_MAX_BEAM = 8
_EXPLAINER = "explain.html"
_PAGES = {"index.html": "utils/serve/page.html", _EXPLAINER: "utils/web/explorer.html"}
_OF_WORKER = "blob: 'wasm-unsafe-eval'"  # it is made from text, and the runtime, too


def find_runtime(folder: Path | None) -> Path:
    """Return where the runtime's two files are: in a folder or in the package that it holds, or where npm installs."""
    given = [folder, folder / "package"] if folder else [Path("node_modules", PACKAGE)]
    for files in (files for place in given for files in (place, place / "dist")):
        if all((files / name).is_file() for name in RUNTIME):
            return files
    missing = f"--runtime {folder} has no {RUNTIME[0]}" if folder else f"node_modules has no {PACKAGE}"
    get = f"npm pack {PACKAGE}@{VERSION} && tar -xzf {PACKAGE}-{VERSION}.tgz"
    raise ValueError(f"{missing}: run `{get}`, then give --runtime package")


def write_web(
    examples: Mapping[Path, Sequence[str]],
    draft: Path,
    runtime: Path,
    checkpoints: Sequence[Path] = (),
    one_file: bool = False,
) -> dict[str, int]:
    """Write the pages, and all that they need, into an existing empty folder; return the sizes of the files.

    Args:
        examples: of each run, sentences of the kind that it learned from.
        runtime: has the runtime's files.
        checkpoints: weights of the first run at other steps.
        one_file: everything inside the page that translates.
    """
    traced = Traced()
    written = [_write_run(run, draft, () if i else checkpoints, traced) for i, run in enumerate(examples)]
    (draft / "runtime").mkdir()
    for file in RUNTIME:
        shutil.copyfile(runtime / file, draft / "runtime" / file)
    write_text(draft / "worker.js", worker(text_rules()))
    files = {file.relative_to(draft).as_posix(): file for file in sorted(draft.rglob("*")) if file.is_file()}
    sizes = {path: file.stat().st_size for path, file in files.items()}
    runs = [told | {"examples": [*shown]} for (told, _), shown in zip(written, examples.values(), strict=True)]
    inside = {
        "files": sizes,
        "runtime": [f"runtime/{file}" for file in RUNTIME],
        "settings": {told["name"]: settings for told, settings in written},
        "served": {"runs": runs, "max_chars": Limits.max_chars, "max_texts": Limits.max_texts, "max_beam": _MAX_BEAM},
    }
    kept = files if one_file else {}
    packed = {path: b64encode(gzip.compress(file.read_bytes(), mtime=0)).decode() for path, file in kept.items()}
    sources = "blob: data:" if one_file else "'self' blob:"
    sizes = {} if one_file else dict(sizes)
    for page, template in _PAGES.items():
        if page == _EXPLAINER and one_file:
            continue  # it would hold everything a second time
        html = page_template(ROOT / template).render(policy="POLICY", inside=inside, packed=packed)
        policy = f"{content_policy(html, _OF_WORKER, sources)}; worker-src blob:"
        write_text(draft / page, html.replace("POLICY", policy, 1))
        sizes[page] = (draft / page).stat().st_size
    if one_file:
        for folder in {draft / Path(path).parts[0] for path in files}:
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
    card = page_template(Path(__file__).with_name("web.md"))
    write_text(draft / CARD, card.render(runs=runs, sizes=sizes, one_file=one_file, package=PACKAGE, version=VERSION))
    return sizes


def _write_run(folder: Path, draft: Path, checkpoints: Sequence[Path], traced: Traced) -> tuple[Facts, Facts]:
    """Write a run's network and vocabulary; return what the page and what the worker are told of it."""
    if (folder / WORDS).is_file():
        remedy = "train it with plain text, or export it --to onnx or ctranslate2"
        raise ValueError(f"{folder} learned from text with separated words, and a page cannot separate them: {remedy}")
    run, place = load_run(folder), draft / folder.resolve().name
    place.mkdir()
    graphs = write_graphs(run, place, "int8", traced)
    (place / CARD).unlink()  # it is about other programs
    for file in checkpoints:  # the same graphs
        with TemporaryDirectory() as other:
            run.model.load_state_dict(read_weights(file))
            write_network(graphs, run.transformer, Path(other), "int8")
            shutil.copyfile(Path(other, WEIGHTS), place / f"weights-{file.stem}.bin")
    config, vocabularies = run.config, sorted(place.glob("*.model"))
    for file in vocabularies:
        write_json(file.with_suffix(".json"), MessageToDict(ModelProto.FromString(file.read_bytes())), indent=0)
        file.unlink()
    told = {
        "name": place.name,
        "source": primary_language(config.data.src_lang),
        "target": primary_language(config.data.tgt_lang),
        "beam": config.search.beam_size,
        "tags": run.tokenizers.text_tags,
        "checkpoints": [*(file.stem for file in checkpoints), ""] if checkpoints else [],  # the last: the run itself
    }
    facts, names = place / FACTS, [f"{file.stem}.json" for file in vocabularies]
    settings = read_json(facts) | {"tokenizers": names, "near": nearness(place.name)}
    facts.unlink()  # the page has it
    return told, settings


# Rules of texts.


def worker(rules: Mapping[str, Any]) -> str:
    """Return the script of the worker, which reads texts by these rules."""
    given = json.dumps(json.dumps(rules, ensure_ascii=False), ensure_ascii=False)
    return f"globalThis.RULES = {given};\n{script_of(ROOT / 'utils/web/worker.js')}"


# The constants of these modules that utils/web/text.js uses, under the same names.
_RULES: dict[ModuleType, str] = {
    form: "INVISIBLE _WIDE_DIGITS _READ_AS _RAISED _LOWERED _PART",
    structure: "_LINE _TAIL _AROUND _BORDER _BORDER_IN_ROW _ROW _MARKERS",
    sentence: "_BRACKETS _END _STOP _BREAK _PARTICLE _COMMA _SPACE _LETTER _JAPANESE _LAST_WORD _LONGEST "
    "ORDINAL _ABBREVIATION",
    number: "_UNITS _SCALES _SMALL _WIDE _ANY_JAPANESE _JAPANESE _ENGLISH HOUR_EN HOUR_JA _WORDS",
    protected: "NUMBER_MARKS _ANY_VERBATIM _YEAR _SHOWN _SURE _ERA _BOLD LEARNED WORDS",
    capitals: "_SUSPECT _WORDS _LONG _LONG_WORDS _WORD _LETTERS _FIRST _EMPHASIS",
    loop: "OFTEN EXTRA _REPEATED _ZEROS",
    data: "_THREE_LETTERS",
    language: "WORD UNSPACED SCRIPTS _OTHER _ANY_LETTER _LATIN_WORD _JAPANESE_END _ADDRESS _MARKUP _JOINT "
    "_MOSTLY _MIN_KANA _WORDS_PER_JOINT _LETTERS_AS_ONE",
    glossary: "_GLUED _BOUNDARY",
}


def text_rules() -> dict[str, Any]:
    """Return the patterns and tables of utils/text, by modules, for utils/web/text.js: written once, in Python."""
    rules = {
        module.__name__.rpartition(".")[2]: {
            constant.strip("_"): _as_json(getattr(module, constant)) for constant in constants.split()
        }
        for module, constants in _RULES.items()
    }
    characters = [*map(chr, (*range(0xD800), *range(0xE000, 0x110000)))]
    rules["form"] |= {
        "LEADING": {"pattern": f"^[{_SPACES}]+"},
        "TRAILING": {"pattern": f"[{_SPACES}]+$"},
        "BASE": {character: base for character in characters if (base := form.base_form(character))},
        "COMBINING": _as_class(filter(combining, characters)),
        "LATIN": _as_class(character for character in characters if name(character, "").startswith("LATIN")),
        "NUMERIC": _as_class(filter(str.isnumeric, characters)),
        "DIGITS": _as_class(filter(str.isdigit, characters), "+"),
    }
    of_languages = " ".join(("", *language.SCRIPTS, *language._ALPHABETS.values())).split(" ")
    rules["language"]["SCRIPTS_OF"] = {code: sorted(language._scripts(code)) for code in of_languages}
    letters = groupby(sorted(filter(str.isalpha, characters), key=language._alphabet), language._alphabet)
    alphabets = {alphabet: _as_class(own) for alphabet, own in letters if alphabet}
    scripts = {script: {"pattern": f"[{letters}]"} for script, (_, letters) in language.SCRIPTS.items()}
    rules["language"]["LETTERS"] = scripts | alphabets
    return rules


def _as_json(value: Any) -> Any:
    if isinstance(value, re.Pattern):
        return {"pattern": javascript(value)}
    if isinstance(value, protected.StandIns):
        return value._asdict()
    return sorted(value) if isinstance(value, set) else value


def _as_class(characters: Iterable[str], times: str = "") -> dict[str, str]:
    """Return a pattern of those characters, which are given in order."""
    numbered = groupby(enumerate(map(ord, characters)), lambda place: place[1] - place[0])
    runs = [[code for _, code in run] for _, run in numbered]
    return {"pattern": "[" + "".join(f"\\u{{{run[0]:x}}}-\\u{{{run[-1]:x}}}" for run in runs) + f"]{times}"}


# Regular expressions in JavaScript, with the flag u: what a class means there is said in properties of Unicode.

_SPACES = r"\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_CLASSES = {"w": r"\p{L}\p{N}_", "d": r"\p{Nd}", "s": _SPACES}
_ASCII_CLASSES = {"w": "A-Za-z0-9_", "d": "0-9", "s": r"\t-\r "}
_AS_I_S_K = "ıİſK"  # where case is ignored, and not in ASCII alone: the other letters that are i, s, or k
_PART = re.compile(
    r"\\(?:U[0-9a-f]{8}|.)|\[(?P<negated>\^?)(?P<members>\]?(?:\\.|[^\\\]])*)\]|\((?:\?(?:[:=!]|<[=!]|i:|s\)))?|[).$A-Za-z]"
)


def javascript(pattern: re.Pattern[str]) -> str:
    """Write a regular expression for JavaScript's `RegExp`, with its flag u and no other."""
    classes = _ASCII_CLASSES if pattern.flags & re.A else _CLASSES
    like_ascii = "" if pattern.flags & re.A else _AS_I_S_K
    ignores_case = [bool(pattern.flags & re.I)]  # of the groups that are open

    def escape(sign: str, in_class: bool = False) -> str:
        if sign[0] == "U":
            return f"\\u{{{sign[1:]}}}"
        if sign in classes:
            return classes[sign] if in_class else f"[{classes[sign]}]"
        if sign.lower() in classes:
            return f"[^{classes[sign.lower()]}]"
        word = f"[{classes['w']}]"
        around = f"(?:(?<={word})(?!{word})|(?<!{word})(?={word}))"
        of_python = {"A": "^", "Z": "$", "b": around}
        is_needed = sign.isalnum() or sign in r"^$\.*+?()[]{}|/" or (sign == "-" and in_class)  # or else refused
        return of_python.get(sign) or (f"\\{sign}" if is_needed else sign)

    def members(match: re.Match[str]) -> str:
        negated, inside = match["negated"], match["members"]
        found = re.sub(r"\\(U[0-9a-f]{8}|.)", lambda one: "" if one[1] == "W" else escape(one[1], True), inside)
        if ignores_case[-1] and "a-z" in found:
            found += like_ascii
        if r"\W" not in inside:
            return f"[{negated}{found}]"
        word = classes["w"]
        return f"(?:(?![{found}])[{word}])" if negated else f"(?:[{found}]|[^{word}])"

    def convert(match: re.Match[str]) -> str:
        part = match[0]
        if part[0] == "\\":
            return escape(part[1:])
        if part[0] == "[":
            return members(match)
        if part == "(?s)":
            return ""
        if part[0] == "(":
            ignores_case.append(ignores_case[-1] or part == "(?i:")
            return part.replace("i", "")
        if part == ")":
            ignores_case.pop()
            return part
        if part == ".":
            return "[^]" if pattern.flags & re.S else r"[^\n]"
        if part == "$":
            return r"(?=\n?$)"
        others = [other for other in like_ascii if re.fullmatch(part, other, re.I)]
        return f"[{part.lower()}{part.upper()}{''.join(others)}]" if ignores_case[-1] else part

    return _PART.sub(convert, pattern.pattern)
