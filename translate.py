"""Translate: `python translate.py "文" ...`, `--input FILE`, lines on standard input, or a prompt."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from utils.command_line import Parser, run_command
from utils.dataset.parallel_text import read_lines
from utils.device import Device, pick_device
from utils.file import atomic_file
from utils.run import WEIGHTS, Run, load_run, newest_run
from utils.search.translator import Translation, Translator
