"""The project's folders, as absolute paths.

The two folders that grow large may be elsewhere: set MIYAKO_CORPUS and MIYAKO_PICKLES.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("MIYAKO_CORPUS") or ROOT / "corpus").expanduser().resolve()  # downloads, texts, caches
PICKLES = Path(os.environ.get("MIYAKO_PICKLES") or ROOT / "pickles").expanduser().resolve()  # a folder for each run
FIGURE = ROOT / "figure"  # the pictures shown in the README
EVERYDAY = ROOT / "const" / "everyday.yaml"  # sentences to read the translations of
PRESET = ROOT / "const" / "preset"  # *.yaml, one per documented training recipe
EXPORTED = "miyako.json"  # in a folder for CTranslate2: what translating needs besides weights and tokenizers
