"""Ten changes that a researcher makes, each trained, translated with and exported; docs/development.md lists them."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from difflib import ndiff
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from const.path import ROOT
from tests.test_floors import tracked
from tests.tiny import TEXT

Edit = tuple[str, str]  # what stands in a file, and what replaces it


class Change(NamedTuple):
    """An edit of some files, the options that ask for it, and what is said of it."""

    edits: Mapping[str, tuple[Edit, ...]]
    options: str = ""
    slower: str = ""  # where another than the fastest way of decoding is taken: the warning
    exports: Mapping[str, str] = {"ctranslate2": ""}  # format -> why it is refused, if it is


CHANGES = {
    "gate": Change(
        {"layers/feed_forward.py": (("F.silu(gate)", "F.gelu(gate)"),)},  # GEGLU
        "--model.activation swiglu",
        exports={"ctranslate2": "results differ", "huggingface": "no feed-forward layer has a gate"},
    ),
    "norm": Change(  # dynamic tanh, Zhu et al. 2025
        {
            "config/model.py": (('Norm = Literal["layer", "rms"]', 'Norm = Literal["layer", "rms", "tanh"]'),),
            "layers/residual.py": (
                (
                    "NORM: dict[Norm, type[nn.LayerNorm] | type[nn.RMSNorm]] = {",
                    """class DynamicTanh(nn.Module):
    def __init__(self, d_model, _eps):
        super().__init__()
        self.alpha, self.weight = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(d_model))

    def initialise(self):
        nn.init.constant_(self.alpha, 0.5)
        nn.init.ones_(self.weight)

    def forward(self, x):
        return self.weight * (self.alpha * x).tanh()


NORM = {
    "tanh": DynamicTanh,""",
                ),
                ("from torch import", "import torch\nfrom torch import"),
            ),
        },
        "--model.norm tanh",
        exports={"ctranslate2": "no place for encoder.0.around_self.norm.alpha", "huggingface": "norm=layer, not tanh"},
    ),
    "grouped queries": Change(
        {
            "layers/multi_head_attention.py": (
                ("nn.Linear(d_model, 2 * d_model)", "nn.Linear(d_model, d_model)"),
                (
                    "key, value = map(self._split, self.key_value(memory).chunk(2, dim=-1))",
                    """pairs = self.key_value(memory).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        key, value = (part.repeat_interleave(2, 1) for part in pairs.chunk(2, dim=1))""",
                ),
            )
        },
        slower="layers/packed.py computes something else than the layers (RuntimeError",
        exports={"ctranslate2": "computes another network", "huggingface": "computes another network"},
    ),
    "window": Change(
        {"layers/mask.py": ((".tril(s_len - t_len)", ".tril(s_len - t_len).triu(s_len - t_len - 15)"),)},
        exports={"ctranslate2": "results differ"},
    ),
    "positions": Change(  # ALiBi, Press et al. 2022
        {
            "config/model.py": (('"rotary", "none"]', '"rotary", "none", "alibi"]'),),
            "layers/scaled_dot_product_attention.py": (
                (
                    "def attention_kernel(",
                    '''class Alibi(nn.Module):
    def forward(self, query, key):
        """Return -m |i - j| √K, since scores are divided by √K."""
        slopes = 2.0 ** -torch.arange(1, query.size(1) + 1, device=key.device)
        at = torch.arange(key.size(2) - query.size(2), key.size(2), device=key.device)
        apart = (at[:, None] - torch.arange(key.size(2), device=key.device)).abs()
        bias = -slopes[:, None, None] * apart * math.sqrt(query.size(-1))
        return bias.to(query.dtype).expand(len(query), -1, -1, -1)


def attention_kernel(''',
                ),
            ),
            "models/transformer.py": (
                ("import attention_kernel", "import Alibi, attention_kernel"),
                ('in ("rotary", "none")', 'in ("rotary", "none", "alibi")'),
                ("self._attention(rotary)", "self._attention(rotary, own=True)"),
                ("def _attention(self, rotary: bool = False)", "def _attention(self, rotary=False, own=False)"),
                ("kernel, rotary=turn)", 'kernel, Alibi() if own and c.positions == "alibi" else None, turn)'),
            ),
        },
        "--model.positions alibi",
        exports={"ctranslate2": "has sinusoidal, learned, rotary positions", "huggingface": "positions=sinusoidal"},
    ),
    "optimizer": Change(  # with the gradient of a sum: Adagrad would not see that it is not divided
        {
            "utils/training/optimizer.py": (
                (
                    "torch.optim.AdamW(groups, lr=config.peak_lr, betas=config.betas, eps=config.eps, fused=True)",
                    "torch.optim.SGD(groups, lr=config.peak_lr, momentum=0.9)",
                ),
            ),
        },
        "--optimizer.peak_lr 1",
    ),
    "corpus": Change(
        {
            "config/data.py": (('CorpusName = Literal["kftt",', 'CorpusName = Literal["mine", "kftt",'),),
            "const/corpora.py": (
                (
                    "CORPORA: dict[str, CorpusSpec] = {spec.name: spec for spec in (",
                    """_MINE = CorpusSpec(
    name="mine",
    homepage="https://example.com",
    url="https://example.com/mine.tar.gz",
    download_mb=1,
    licence="CC0",
    text="places and things",
    languages=("ja", "en"),
    splits=("train.{lang}", "dev.{lang}", "test.{lang}"),
    hashes="train.ja\\ntrain.en\\ndev.ja\\ndev.en\\ntest.ja\\ntest.en",
)

CORPORA: dict[str, CorpusSpec] = {spec.name: spec for spec in (_MINE, """,
                ),
            ),
        },
        "--data.corpus mine --data.archive mine.tar.gz",
    ),
    "decoding": Change(
        {
            "utils/search/constraint.py": (
                (
                    "        if t < self._last_min_length:",
                    """        log_probs.scatter_(-1, so_far[..., -1:], NEVER)
        if t < self._last_min_length:""",
                ),
            )
        }
    ),
    "smoothing": Change(
        {
            "utils/training/loss.py": (
                ("smoothing * logits.mean(-1)", "smoothing * logits[..., 4:].mean(-1)"),
                (
                    "gradient.sub_(smoothing / vocab / passes)",
                    "gradient[..., 4:].sub_(smoothing / (vocab - 4) / passes)",
                ),
            )
        }
    ),
    "decoder-only": Change(  # the source, too, sees what is before it alone
        {
            "models/decoder_only.py": (
                (
                    "seen = mask if past is None else mask & causal_mask(x.size(1), mask.size(-1), x.device)",
                    """seen = mask & causal_mask(x.size(1), mask.size(-1), x.device)
        seen[..., 0] |= ~seen.any(-1)""",
                ),
            )
        },
        "--task decoder_only_translation --model.n_layers 2",
        exports={"ctranslate2": "only Transformers that translate", "safetensors": ""},
    ),
}

SETTINGS = """
name: change
tokenizer: {kind: bpe, vocab_size: 96, normalization: identity}
model: {d_model: 16, n_heads: 4, d_ff: 24, max_length: 64}
batch: {tokens_per_batch: 400, max_tokens: 64}
optimizer: {peak_lr: 0.01, warmup_steps: 10, schedule: constant}
training: {max_epochs: null, max_steps: 40, validate_every: 20, bleu_sentences: 4, precision: fp32, device: cpu}
search: {beam_size: 2, max_ratio: 1.0}
"""
# All in one process, which imports what is large once, and in a copy of it for each change.
RUN = """
import importlib, json, os, sys, warnings
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import ctranslate2, sacrebleu, sentencepiece, torch, torch._dynamo, yaml

torch.set_num_threads(1)
warnings.simplefilter("ignore")

def run(program, *words):
    sys.argv = [program + ".py", *words]
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        try:
            importlib.import_module(program).main()
        except ValueError as error:
            print("refused:", error)
            if program == "train":
                raise
    return said.getvalue(), [str(warning.message) for warning in warned]

def change(words, exports):
    import train
    from utils.task import translation
    train.CurvePicture.on_validation = lambda *_: None  # pictures take long
    translation.draw_cross_attention = lambda *_: None
    outcome = {"train": run("train", *words), "translate": run("translate", "京都に古い橋がある。", "--n-best", "2")}
    outcome |= {to: run("export", "--to", to, "--output", to) for to in exports}
    from utils.load import load_run
    from utils.run import find_run
    trained = load_run(find_run(None))
    ids = torch.randint(4, len(trained.tokenizers.tgt), (2, 40))
    tgt = torch.cat([torch.full((2, 1), 2), ids[:, :39]], 1)
    model = trained.translator(precision="fp32").searcher.model
    with torch.no_grad():
        state, expected, apart = model.start(ids), trained.model(ids, tgt), 0
        for t in range(tgt.size(1)):
            logits, state = model.step(tgt[:, t], state)
            apart = max(apart, (logits - expected[:, t]).abs().max().item())
    with open(trained.folder / "log.jsonl") as log:
        losses = [line["loss"] for line in map(json.loads, log) if line["kind"] == "dev"]
    Path("outcome.json").write_text(json.dumps(outcome | {"apart": apart, "losses": losses}))

for folder, words, exports in json.loads(sys.argv[1]):
    if not os.fork():
        os.chdir(folder)
        sys.path.insert(0, folder)
        os.environ |= {"MIYAKO_CORPUS": folder + "/corpus", "MIYAKO_PICKLES": folder + "/pickles"}
        change(words, exports)
        os._exit(0)
    os.wait()
"""


def edited(name: str, edits: tuple[Edit, ...]) -> str:
    """The text of a file after its edits."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for old, new in edits:
        assert old in text, f"{name} has changed: {old}"
        text = text.replace(old, new)
    return text


def scratch(folder: Path, change: Change) -> Path:
    """A copy of the house with the change, and a text to learn from."""
    for name in tracked():
        if not name.startswith(("pickles/", "figure/", "docs/", "tests/", "bench/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    for name, edits in change.edits.items():
        (folder / name).write_text(edited(name, edits), encoding="utf-8")
    with tarfile.open(folder / "mine.tar.gz", "w:gz") as archive:
        for side, lines in (("ja", TEXT.src), ("en", TEXT.tgt)):
            for split, part in (("train", lines[:100]), ("dev", lines[100:110]), ("test", lines[110:])):
                path = folder / f"{split}.{side}"
                path.write_text("".join(f"{line}\n" for line in part), encoding="utf-8")
                archive.add(path, path.name)
    (folder / "settings.yaml").write_text(SETTINGS, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The folder of each change, with what became of it."""
    folders, jobs = dict[str, Path](), list[tuple[str, list[str], list[str]]]()
    for name, change in CHANGES.items():
        folders[name] = scratch(tmp_path_factory.mktemp("change"), change)
        texts = "--data.src train.ja --data.tgt train.en --data.held_out 10" if name != "corpus" else ""
        depth = "" if "decoder_only" in change.options else "--model.n_encoder_layers 1 --model.n_decoder_layers 2"
        words = f"--config settings.yaml {texts} {depth} {change.options}".split()
        jobs.append((str(folders[name]), words, [*change.exports]))
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(jobs)], env=one_thread, stderr=subprocess.PIPE, text=True
    )
    assert not ran.stderr, ran.stderr
    return folders


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_trained_translated_with_and_exported_or_refused(name: str, outcomes: Mapping[str, Path]) -> None:
    change = CHANGES[name]
    outcome: dict[str, Any] = json.loads((outcomes[name] / "outcome.json").read_text(encoding="utf-8"))
    assert outcome["losses"][-1] < outcome["losses"][0] - 0.5
    assert outcome["apart"] < 1e-4  # steps of a search from the whole forward pass
    for command in ("train", "translate"):
        said, warned = outcome[command]
        assert "refused" not in said
        assert bool(warned) == bool(change.slower)
        assert all(change.slower in line for line in warned)
    for to, reason in change.exports.items():
        said, _ = outcome[to]
        assert re.search(f"refused: .*{re.escape(reason)}" if reason else "to use it: ", said), said


def test_the_page_lists_their_files_and_lines() -> None:
    page = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| .+ \| (`.+`) \| (\d+) \| (refused|exported) \|$", page, re.MULTILINE)
    expected = []
    for change in CHANGES.values():
        sides = [(ROOT.joinpath(name).read_text("utf-8"), edited(name, edits)) for name, edits in change.edits.items()]
        n = sum(line.startswith("+ ") for a, b in sides for line in ndiff(a.splitlines(), b.splitlines()))
        outcome = "refused" if change.exports["ctranslate2"] else "exported"
        expected.append((", ".join(f"`{name}`" for name in change.edits), str(n), outcome))
    assert listed == expected
