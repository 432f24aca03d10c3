"""What an exported translator is used with, in a file beside its weights: languages, limits, settings of its search."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import cast

from utils.file import write_json
from utils.search.hypothesis import SearchConfig

SETTINGS = "miyako.json"


@dataclass(frozen=True)
class TranslatorSettings:
    """All that translating asks of a run beside weights and tokenizers.

    Args:
        name: of the run.
        src_lang: language code of the source.
        tgt_lang: of the target, which says how sentences are joined.
        window: most source tokens at a time, </s> included.
        longest: most target tokens, </s> included.
        search: how translations are looked for when nothing else is asked for.
    """

    name: str
    src_lang: str
    tgt_lang: str
    window: int
    longest: int
    search: SearchConfig

    def save(self, folder: Path) -> None:
        """Write them into a folder."""
        write_json(folder / SETTINGS, asdict(self))

    @staticmethod
    def are_in(folder: Path) -> bool:
        """Whether the folder is an exported translator."""
        return (folder / SETTINGS).is_file()

    @classmethod
    def load(cls, folder: Path) -> "TranslatorSettings":
        """Read what `save` wrote.

        Raises:
            ValueError: it is no exported translator, or the file is damaged.
        """
        path = folder / SETTINGS
        if not cls.are_in(folder):
            raise ValueError(
                f"{folder} is no exported translator: "
                f"`python export.py {folder} --to ctranslate2 --output {folder / 'ctranslate2'}` makes one of a run"
            )
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            search = SearchConfig(**found.pop("search"))
            settings = cls(search=search, **found)
            for leaf in fields(cls):
                if not isinstance(value := getattr(settings, leaf.name), cast(type, leaf.type)):
                    raise TypeError(f"{leaf.name} is {value!r}")
            return settings
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            known = ", ".join(leaf.name for leaf in fields(cls))
            raise ValueError(f"{path} does not hold {known} ({error}): export the run anew") from error
