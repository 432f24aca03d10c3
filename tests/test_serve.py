"""serve.py in this process, on untrained runs: what is served and what is refused."""

import asyncio
import gc
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from fastapi import FastAPI

import serve
from tests.tiny import MODEL, TEXT, lively, run, tokenizers
from tests.utils.serve.served import asking
from tests.utils.task.tiny_run import language_run
from utils.command import run_command
from utils.config import TranslationConfig
from utils.run import CONFIG, WEIGHTS, create_run, find_run, load_run
from utils.serve.service import Limits
from utils.text.tokenizer import TokenizerPair
from utils.training.checkpoint import write_weights

# An unclosed socket is reported in the test that left it open, not wherever it happens to be collected.
pytestmark = pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")


def run_back(root: Path) -> Path:
    """A run that translates from English to Japanese."""
    there = run(root / "there")
    config = TranslationConfig.load(there / CONFIG)
    pair = TokenizerPair(tokenizers().tgt, tokenizers().src)
    folder = create_run(
        replace(config, name="back", data=replace(config.data, src_lang="en", tgt_lang="ja")), pair, root
    )
    write_weights(lively(MODEL, len(pair.src), len(pair.tgt)).state_dict(), folder / WEIGHTS, 0.0)
    return folder


def touch(folder: Path, time: int) -> None:
    os.utime(folder / WEIGHTS, (time, time))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pickles")
    touch(run(root), 2_000_000_000)
    touch(run_back(root), 1_500_000_000)
    touch(run_back(root), 1_600_000_000)
    language_run(root)
    return root


class Served:
    """What would have been served, and the messages."""

    def __init__(self) -> None:
        self.apps: list[FastAPI] = []
        self.status: object = None
        self.out = self.err = ""


Command = Callable[..., Served]


@pytest.fixture
def command(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setattr(serve, "PICKLES", root)
    monkeypatch.setattr(serve, "find_run", lambda name, root=root: find_run(name, root=root))

    def run_it(*arguments: str | Path) -> Served:
        served = Served()

        class Recorder:
            def __init__(self, app: FastAPI, on_ready: Callable[[], object]) -> None:
                served.apps.append(app)
                self._on_ready = on_ready

            def serve_until_told(self, bound: socket.socket) -> None:
                self._on_ready()
                bound.close()

        monkeypatch.setattr(serve, "Server", Recorder)
        monkeypatch.setattr(sys, "argv", ["serve.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run_command("serve.py", serve.main)
        served.status = ended.value.code
        served.out, served.err = capsys.readouterr()
        del ended
        gc.collect()
        return served

    return run_it


def complaint(served: Served) -> str:
    assert served.status == 2
    assert not served.out
    assert served.err.startswith("serve.py: error: ")
    assert served.err.count("\n") == 1
    return served.err


def names(root: Path, name: str) -> list[str]:
    """Folders of runs, the newest first."""
    return [folder.name for folder in sorted(root.glob(f"{name}-*"), key=lambda f: -(f / WEIGHTS).stat().st_mtime)]


def test_the_newest_run_and_the_newest_back_are_served_in_one_line(command: Command, root: Path) -> None:
    found = command("--port", "0")
    assert (found.status, found.err) == (0, "")
    (there,), (back, _) = names(root, "tiny"), names(root, "back")
    address, said = found.out.split(" serves ")
    assert address.startswith("http://127.0.0.1:")
    assert said == f"{there} (ja→en), {back} (en→ja); Ctrl-C quits\n"


def test_a_run_without_a_way_back_is_served_alone(tmp_path: Path) -> None:
    folder = run(tmp_path)
    touch(language_run(tmp_path), 2_100_000_000)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / WEIGHTS).touch()
    (broken / CONFIG).write_text("task: alchemy\n", encoding="utf-8")
    touch(broken, 1)
    assert serve.default_runs(tmp_path) == [folder]


def test_each_run_answers_as_translating_with_it_does(command: Command, root: Path) -> None:
    (there,), (_, older) = names(root, "tiny"), names(root, "back")
    found = command("--run", there, "--run", root / older, "--port", "0")

    async def ask() -> list[str]:
        async with asking(found.apps[0]) as client:
            questions = [
                {"q": TEXT.src[5], "source": "ja", "target": "en"},
                {"q": TEXT.tgt[5], "source": "auto", "target": "ja"},
            ]
            return [(await client.post("/translate", json=q)).json()["translatedText"] for q in questions]

    offline = [
        load_run(root / name, torch.device("cpu")).translator().translate([text])[0].text
        for name, text in ((there, TEXT.src[5]), (older, TEXT.tgt[5]))
    ]
    assert asyncio.run(ask()) == offline
    assert all(offline)


def test_limits_are_options(command: Command) -> None:
    app = command("--port", "0", "--max_chars", "7", "--max_texts", "2").apps[0]

    async def ask() -> list[int]:
        async with asking(app) as client:
            return [
                (await client.post("/translate", json={"q": q, "source": "ja", "target": "en"})).status_code
                for q in ("x" * 7, "x" * 8, ["x"] * 2, ["x"] * 3)
            ]

    assert asyncio.run(ask()) == [200, 400, 200, 400]


def test_every_limit_and_the_address_are_options(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 ({error})")
    found: list[Limits] = []
    monkeypatch.setattr(serve, "create_app", lambda _, limits: found.append(limits))
    limits = Limits(7, 2, 3, 4.5, 6, 7.5)
    options = [word for name, value in asdict(limits).items() for word in (f"--{name}", value)]
    said = command("--host", "::1", "--port", "0", "--device", "cpu", *options).out
    assert found == [limits]
    assert said.startswith("http://[::1]:")


def test_a_taken_port_is_one_line(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert (
            f"port {port} (Address already in use): another program uses it: give another port, or --port 0"
            in complaint(command("--port", port))
        )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--run", "nowhere"], "no run nowhere"),
        (["--prot", "0"], "unknown option prot: did you mean --port?"),
        (["--batch_texts", "0"], "batch_texts=0 lets nothing through"),
        (["--precision", "fp16"], "precision=fp16 needs CUDA"),
        (["--port", "70000"], "port 70000"),
    ],
)
def test_a_mistake_is_one_line(command: Command, arguments: list[str], said: str) -> None:
    assert said in complaint(command(*arguments, *([] if "--port" in arguments else ["--port", "0"])))


def test_a_run_given_twice_is_one_line(command: Command, root: Path) -> None:
    (there,) = names(root, "tiny")
    assert f"two runs are called {there}" in complaint(command("--run", there, "--run", there, "--port", "0"))


def test_without_any_run_it_is_said_how_to_train_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="train one first"):
        serve.default_runs(tmp_path)
