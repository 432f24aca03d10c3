"""The project's folders, as absolute paths.

The two folders that grow large may be elsewhere: set MIYAKO_CORPUS and MIYAKO_PICKLES.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("MIYAKO_CORPUS", ROOT / "corpus")).resolve()  # downloads, corpora and token caches
PICKLES = Path(os.environ.get("MIYAKO_PICKLES", ROOT / "pickles")).resolve()  # one folder per training run
FIGURE = ROOT / "figure"  # the pictures shown in the README
PRESET = ROOT / "const" / "preset"  # *.yaml, one per documented training recipe
