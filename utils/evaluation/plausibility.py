"""Checks against meaningless scores: a wrong file, the same file twice, an unexpected language."""

from collections.abc import Mapping, Sequence

from utils.text.script import count_letters, primary_language

_LEAST_OWN = 0.1  # share of letters; names and quotations in another script are common
_MOST_FOREIGN = 0.5


def refuse_other_language(lines: Sequence[str], language: str, name: str, remedy: str) -> None:
    """Refuse a text whose letters show that it is in another language; only scripts are distinguished.

    Args:
        lines: the text.
        language: expected language.
        name: name of the file, for the message.
        remedy: what to do then, for the message.

    Raises:
        ValueError: the script does not fit, e.g. the text is Japanese instead of English.
    """
    counts, code = count_letters("".join(lines)), primary_language(language)
    own = {"ja": counts.kana + counts.han, "zh": counts.han, "ko": counts.hangul}
    share = own.get(code, counts.kana + counts.han + counts.hangul) / max(1, counts.letters)
    if counts.letters and (share < _LEAST_OWN if code in own else share > _MOST_FOREIGN):
        script = {"ja": "kana and kanji", "zh": "Chinese characters", "ko": "Hangul"}.get(code, "kana, kanji or Hangul")
        raise ValueError(f"{name} is not in {language}: {share:.0%} of its letters are {script}; {remedy}")


def refuse_same(texts: Mapping[str, Sequence[str]]) -> None:
    """Refuse texts that are identical.

    Args:
        texts: role and file name -> lines.

    Raises:
        ValueError: two texts are identical.
    """
    seen: dict[tuple[str, ...], str] = {}
    for name, lines in texts.items():
        twin = seen.setdefault(tuple(lines), name)
        if twin != name:
            raise ValueError(
                f"{twin} and {name} have the same {len(lines):,} lines: was a file given twice, or in the wrong place? "
                "(--force scores them anyway)"
            )
