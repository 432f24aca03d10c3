"""What makes a score say nothing: the wrong file, the same file twice, a text that is not what it is taken for."""

from collections.abc import Mapping, Sequence

from utils.text.script import count_letters, primary_language

_LEAST_OWN = 0.1  # of the letters; names and quotations in another script are common
_MOST_FOREIGN = 0.5


def refuse_other_language(lines: Sequence[str], language: str, name: str) -> None:
    """Refuse a text that its letters show to be in another language; scripts are told apart, and no more.

    Args:
        lines: the text.
        language: that it should be in.
        name: of its file.

    Raises:
        ValueError: it is Japanese, say, and should be English.
    """
    counts, code = count_letters("".join(lines)), primary_language(language)
    own = {"ja": counts.kana + counts.han, "zh": counts.han, "ko": counts.hangul}
    share = own.get(code, counts.kana + counts.han + counts.hangul) / max(1, counts.letters)
    if counts.letters and (share < _LEAST_OWN if code in own else share > _MOST_FOREIGN):
        script = {"ja": "kana and kanji", "zh": "Chinese characters", "ko": "Hangul"}.get(code, "kana, kanji or Hangul")
        raise ValueError(
            f"{name} is not in {language}: {share:.0%} of its letters are {script}; wrong file, or wrong --tgt_lang? "
            "(--force scores it nevertheless)"
        )


def refuse_same(texts: Mapping[str, Sequence[str]]) -> None:
    """Refuse two texts that are line by line the same.

    Args:
        texts: name of the file -> lines, with what it is given as in the name.

    Raises:
        ValueError: two are.
    """
    seen: dict[tuple[str, ...], str] = {}
    for name, lines in texts.items():
        twin = seen.setdefault(tuple(lines), name)
        if twin != name:
            raise ValueError(
                f"{twin} and {name} hold the same {len(lines):,} lines: was a file given twice, or in the wrong place? "
                "(--force scores them nevertheless)"
            )


def looks_tokenized(lines: Sequence[str]) -> bool:
    """Whether most full stops that end a line stand behind a space: text that nobody has put together again."""
    stops = [line for line in map(str.rstrip, lines) if line.endswith(".")]
    return sum(line.endswith(" .") for line in stops) * 2 > len(stops)
