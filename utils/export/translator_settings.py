"""What can be known of an exported translator without CTranslate2: its settings, and whether it is installed."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import cast

from config.search import SearchConfig
from utils.file import read_json, write_json
from utils.removed_setting import without_removed

SETTINGS = "miyako.json"


def require_ctranslate2() -> None:
    """Refuse to go on where CTranslate2 cannot be imported; call this before importing any module that needs it."""
    try:
        import ctranslate2  # noqa: F401
    except ImportError as error:  # also of its shared library
        raise ValueError(f"ctranslate2 cannot be loaded ({error}): `poetry install --with export`") from error


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
        """Read what `save` wrote."""
        if not cls.are_in(folder):
            raise ValueError(
                f"{folder} is not an exported translator: "
                f"`python export.py {folder} --to ctranslate2 --output {folder / 'ctranslate2'}` exports a run"
            )
        try:
            found = without_removed(read_json(folder / SETTINGS))
            settings = cls(**found | {"search": SearchConfig(**found["search"])})
            for leaf in fields(cls):
                if not isinstance(value := getattr(settings, leaf.name), cast(type, leaf.type)):
                    raise TypeError(f"{leaf.name} is {value!r}")
            return settings
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"{folder / SETTINGS} cannot be read ({error}): export the run again") from error
