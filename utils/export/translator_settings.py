"""Settings of an exported translator, in a file beside its weights: languages, limits and search settings."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import cast

from utils.file import write_json
from utils.removed_setting import without_removed
from utils.search.constraint import SearchConfig

SETTINGS = "miyako.json"


@dataclass(frozen=True)
class TranslatorSettings:
    """What translating needs of a run besides weights and tokenizers.

    Args:
        name: name of the run.
        src_lang: language code of the source.
        tgt_lang: language code of the target, which decides how sentences are joined.
        window: most source tokens at a time, </s> included.
        longest: most target tokens, </s> included.
        search: default search settings.
    """

    name: str
    src_lang: str
    tgt_lang: str
    window: int
    longest: int
    search: SearchConfig

    def save(self, folder: Path) -> None:
        """Write the settings into a folder."""
        write_json(folder / SETTINGS, asdict(self))

    @staticmethod
    def are_in(folder: Path) -> bool:
        """Return whether the folder is an exported translator."""
        return (folder / SETTINGS).is_file()

    @classmethod
    def load(cls, folder: Path) -> "TranslatorSettings":
        """Read what `save` wrote.

        Raises:
            ValueError: the folder is not an exported translator, or the file is damaged.
        """
        path = folder / SETTINGS
        if not cls.are_in(folder):
            raise ValueError(
                f"{folder} is not an exported translator: "
                f"`python export.py {folder} --to ctranslate2 --output {folder / 'ctranslate2'}` exports a run"
            )
        try:
            found = without_removed(json.loads(path.read_text(encoding="utf-8")))
            search = SearchConfig(**found.pop("search"))
            settings = cls(search=search, **found)
            for leaf in fields(cls):
                if not isinstance(value := getattr(settings, leaf.name), cast(type, leaf.type)):
                    raise TypeError(f"{leaf.name} is {value!r}")
            return settings
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            known = ", ".join(leaf.name for leaf in fields(cls))
            raise ValueError(f"{path} does not hold {known} ({error}): export the run again") from error
