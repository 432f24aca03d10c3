"""Where things live, as absolute paths."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "corpus"  # downloads, unpacked corpora and token caches
PICKLES = ROOT / "pickles"  # one folder a training run
FIGURE = ROOT / "figure"  # the pictures that the README shows
PRESET = ROOT / "const" / "preset"  # *.yaml, one a documented training recipe
