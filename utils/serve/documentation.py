"""The API documentation as a page that, unlike FastAPI's own, loads no scripts from the network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from utils.page_template import page_template


def documentation(schema: Mapping[str, Any]) -> str:
    """Render an OpenAPI schema as a page: each endpoint with the fields that it takes."""
    return page_template(Path(__file__).with_suffix(".html")).render(schema=schema)
