"""Languages: codes and names, recognition by letters, spacing, and checks of implausible texts."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from config.data import primary_language

# Language codes, and recognition of languages by their letters.

# inside the brackets of a regular expression
KANA, HAN, HANGUL = (
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "\u3400-\u4dbf\u4e00-\u9fff",
    "\u1100-\u11ff\uac00-\ud7af",
)
UNSPACED = ("ja", "zh")
SCRIPTS = {  # of languages that are recognised by their letters: what those are called, and which they are
    "ja": ("kana and kanji", KANA + HAN),
    "zh": ("Chinese characters", HAN),
    "ko": ("Hangul", HANGUL),
    "th": ("Thai", "\u0e00-\u0e7f"),
    "lo": ("Lao", "\u0e80-\u0eff"),
    "km": ("Khmer", "\u1780-\u17ff"),
    "my": ("Burmese", "\u1000-\u109f"),
    "bo": ("Tibetan", "\u0f00-\u0fff"),
}
# Of other languages: a word in Unicode's names of their letters (LATIN SMALL LETTER A), and which languages have them;
# some have two. A language that is in no line may have any.
_ALPHABETS = {
    "Latin": "af az bs ca cs cy da de en eo es et eu fi fo fr fy ga gl ha hr ht hu id ig is it jv ku la lb lt lv mg mi "
    "ms mt nb nl nn no oc pl pt rm ro rw sk sl sn so sq sr st su sv sw tk tl tr uz vi wo xh yo zu",
    "Cyrillic": "ab av az ba be bg bs ce cu cv kk kv ky mk mn os ru sr tg tt uk uz",
    "Arabic": "ar az fa kk ks ku ky pa ps sd tg ug ur uz",
    "Devanagari": "hi ks mr ne sa sd",
    "Greek": "el",
    "Hebrew": "he iw yi",
    "Armenian": "hy",
    "Georgian": "ka",
    "Ethiopic": "am ti",
    "Bengali": "as bn",
    "Gurmukhi": "pa",
    "Gujarati": "gu",
    "Oriya": "or",
    "Tamil": "ta",
    "Telugu": "te",
    "Kannada": "kn",
    "Malayalam": "ml",
    "Sinhala": "si",
}
_OTHER = "of another script"
LETTER = r"^\W\d_"
_ANY_LETTER = re.compile(f"[{LETTER}]")
WORD = re.compile(r"[^\W_]")
_MOSTLY = 0.5  # share of the letters: names and quotations in another script are common on both sides
_MIN_KANA = 0.05  # Chinese quotes a few; Japanese has a third or more, and some even in a list of headlines


def count_letters(text: str) -> tuple[int, Counter[str]]:
    """Return how many letters a text has, and how many of them are in each script: the keys of the tables above.

    The dot between katakana is not a letter; what Japanese (`ja`) has more of than Chinese (`zh`) is kana.
    """
    letters = Counter(_ANY_LETTER.findall(text))
    counts = Counter[str]()
    for script, own in SCRIPTS.items():
        counts[script] = sum(letters[letter] for letter in re.findall(f"[{own[1]}]", "".join(letters)))
    for letter, count in letters.items():
        if alphabet := _alphabet(letter):
            counts[alphabet] += count
    counts[_OTHER] = letters.total() - counts.total() + counts["zh"]  # which `ja` has, too
    return letters.total(), counts


@lru_cache(2**14)
def _alphabet(letter: str) -> str:
    usual = unicodedata.normalize("NFKC", letter)[0]
    return next((word for word in unicodedata.name(usual, "").title().split() if word in _ALPHABETS), "")


def _scripts(language: str) -> set[str]:
    """Return the scripts that a text in this language may be in."""
    code = primary_language(language)
    alphabets = {script for script, languages in _ALPHABETS.items() if code in languages.split()}
    return {code} if code in SCRIPTS else alphabets or {*_ALPHABETS, _OTHER}


def has_words(text: str) -> bool:
    """Return whether a text has a letter or a digit; signs alone mean the same in every language."""
    return WORD.search(text) is not None


def unspaced_language(lines: Iterable[str]) -> str:
    """Return `ja` or `zh` where most letters are kana and kanji, by whether there are kana; "" for any other text."""
    n, counts = count_letters("".join(lines))
    if counts["ja"] <= _MOSTLY * n:
        return ""
    return "ja" if counts["ja"] - counts["zh"] > _MIN_KANA * n else "zh"


# Whether spaces separate all words and marks of a text, as after a tokenizer such as Moses or KyTea.

_GLUED = re.compile(r"[^\W\d_][.,!?;:。、！？]")  # a mark right after a letter
_LONGEST_WORD = 20  # characters; what is longer and has no space is more than a word


def looks_tokenized(lines: Sequence[str]) -> bool:
    """Return whether most full stops at line ends follow a space, as in text that was not detokenized."""
    stops = [line for line in map(str.rstrip, lines) if line.endswith(".")]
    return sum(line.endswith(" .") for line in stops) * 2 > len(stops)


def looks_untokenized(lines: Sequence[str]) -> bool:
    """Return whether most lines have marks right after letters, or no spaces, as in text that was not tokenized."""
    lines = [line.strip() for line in lines if line.strip()]
    raw = [line for line in lines if _GLUED.search(line) or (len(line) > _LONGEST_WORD and " " not in line)]
    return len(raw) * 2 > len(lines)


# Language detection by letters, among the available languages, and language names.

# Japanese letters of an address: 会議.pdf?id=1, wiki/東京, but not a text right behind it
_PATH = rf"(?:[{KANA}{HAN}]+(?=\.[A-Za-z]{{2,4}}\b)[!-~]+|(?<=/)[{HAN}]+)"
WEB_ADDRESS = rf"https?://[!-~]+{_PATH}*(?<=[\w/=&#{HAN}-])|\bwww\.[\w.-]+\.[A-Za-z]{{2,}}(?:/[!-~]*)?(?<=[\w/])"
MAIL_ADDRESS = r"(?<![\w.+-])[\w.+-]+@[\w-]+\.[A-Za-z.]*[A-Za-z]"
_ADDRESS = re.compile(f"{WEB_ADDRESS}|{MAIL_ADDRESS}", re.A)  # models spell them anew, if at all: they are no text
_MARKUP = re.compile(r"(?s)```.*?(?:```|\Z)|`[^`\n]*`|</?[A-Za-z][^<>]*>")
_JAPANESE, _LATIN = f"[{KANA}{HAN}]", "[A-Za-z]"
_LATIN_WORD, _JAPANESE_END = re.compile(f"{_LATIN}+"), re.compile(rf"{_JAPANESE}[\W\d_]*\Z")
# where a Latin word is part of a Japanese sentence: no space is beside it, or one and then a particle
_PARTICLE = f"(?:を|について|として|[はがのにへとでも][{HAN}ァ-ヺ、「])"
_JOINT = re.compile(f"(?<={_LATIN})[{KANA}{HAN}、。（]|{_JAPANESE}(?={_LATIN})|(?<={_LATIN} ){_PARTICLE}")
_WORDS_PER_JOINT = 20  # an English text may have a Tシャツ
_LETTERS_AS_ONE = 2  # Latin letters say as much as one kana or kanji

_NAMES = {"de": "German", "en": "English", "fr": "French", "ja": "Japanese", "zh": "Chinese"}


class Detected(NamedTuple):
    """A guess."""

    language: str
    confidence: float  # percent


def language_name(code: str) -> str:
    """Return the English name of a language, or the code itself if it has none here."""
    return _NAMES.get(code, code)


def detect(text: str, languages: Sequence[str]) -> Detected | None:
    """Return the likeliest of the given languages; None if none of them fits the script of the text.

    Letters tell Japanese from English, but not English from German: among those, the first is taken, as it is for a
    text without letters; addresses and markup do not count beside others. With kana, a text of more Latin letters is
    Japanese, too, if it ends so, or if they are not many more, or if their words are parts of its sentences.
    """
    plain = _ADDRESS.sub(" ", _MARKUP.sub(" ", text))
    n, counts = count_letters(plain)
    if not n:
        plain, (n, counts) = text, count_letters(text)
    if not n:
        return Detected(languages[0], 0.0)
    japanese, kana = counts["ja"], counts["ja"] - counts["zh"]
    share, unspaced = japanese / n, unspaced_language([plain])
    if not unspaced and kana:
        n_words, n_joints = len(_LATIN_WORD.findall(plain)), len(_JOINT.findall(plain))
        is_much = kana > _MIN_KANA * n and (_LETTERS_AS_ONE * japanese > n - japanese or _JAPANESE_END.search(plain))
        if is_much or n_joints * _WORDS_PER_JOINT > n_words:
            share, unspaced = 1.0, "ja"
    if unspaced:
        # a few kanji without kana are as much Japanese as Chinese
        fitting = [code for code in languages if primary_language(code) == unspaced]
        fitting = fitting or [code for code in languages if primary_language(code) in UNSPACED]
    else:
        share, fitting = 1 - share, [code for code in languages if primary_language(code) not in UNSPACED]
        for script in (script for script, count in counts.items() if count > _MOSTLY * n and script not in UNSPACED):
            fitting = [code for code in fitting if script in _scripts(code)]  # such as Korean
    return Detected(fitting[0], round(100 * share / len(fitting), 1)) if fitting else None


# Checks against meaningless scores: a wrong file, the same file twice, an unexpected language.

_MIN_OWN = 0.1  # share of letters; names and quotations in another script are common
_MAX_FOREIGN = 0.5


def refuse_other_language(lines: Sequence[str], language: str, name: str, remedy: str) -> None:
    """Refuse a text whose letters show that it is in another language; only scripts are distinguished.

    The message has the name of the file and the remedy.
    """
    own, (n, counts) = _scripts(language), count_letters("".join(lines))
    has_latin = "Latin" in own
    script = max([script for script in counts if script not in own] if has_latin else own, key=counts.__getitem__)
    share = counts[script] / max(1, n)
    if n and (share > _MAX_FOREIGN if has_latin else share < _MIN_OWN):
        called = SCRIPTS[script][0] if script in SCRIPTS else script
        raise ValueError(f"{name} is not in {language}: {share:.0%} of its letters are {called}; {remedy}")


def refuse_same(texts: Mapping[str, Sequence[str]]) -> None:
    """Refuse texts that are identical, given by their roles and file names."""
    seen: dict[tuple[str, ...], str] = {}
    for name, lines in texts.items():
        twin = seen.setdefault(tuple(lines), name)
        if twin != name:
            raise ValueError(
                f"{twin} and {name} have the same {len(lines):,} lines: was a file given twice, or in the wrong place? "
                "(--force scores them anyway)"
            )
