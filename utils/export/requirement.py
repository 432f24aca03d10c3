"""Libraries that only exporting needs, and that may not be there."""

from importlib.util import find_spec


def require_ctranslate2() -> None:
    """To be called before anything is imported that imports CTranslate2.

    Raises:
        ValueError: it is not installed.
    """
    if find_spec("ctranslate2") is None:
        raise ValueError("ctranslate2 is not installed: `poetry install --with export`, or `pip install ctranslate2`")
