"""Pages that are one file, filled in from a template."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template


def page_template(file: Path) -> Template:
    """A template that escapes what it is given, and complains of what it is not."""
    environment = Environment(
        loader=FileSystemLoader(file.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(file.name)
