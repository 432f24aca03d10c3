"""What the API says of itself, as a page that asks no network for scripts, as FastAPI's own do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from utils.page_template import page_template


def documentation(schema: Mapping[str, Any]) -> str:
    """A page of an OpenAPI schema: each endpoint with the fields that it takes."""
    return page_template(Path(__file__).with_suffix(".html")).render(schema=schema)
