"""What comes from elsewhere, a run or an archive, is read as data: no call that would run or unpack it unchecked."""

import ast

import pytest

from tests.test_floors import python_sources

# they run what a file says, or write wherever it says
FORBIDDEN = {"eval", "exec", "pickle.load", "pickle.loads", "pickle.Unpickler", "shutil.unpack_archive"}
SAFE = {"yaml.SafeLoader"}


def faults(source: str) -> list[str]:
    """Line and name of each such call; `torch.load` and `numpy.load` are told to refuse pickles, or do so."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name, given = ast.unparse(node.func), {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        unchecked = name in FORBIDDEN or name.endswith(".extractall")
        unchecked |= name == "torch.load" and given.get("weights_only") != "True"
        unchecked |= name == "np.load" and given.get("allow_pickle", "False") != "False"
        unchecked |= name == "yaml.load" and given.get("Loader", ast.unparse(node.args[-1])) not in SAFE
        if unchecked:
            found.append(f"{node.lineno} {name}")
    return found


def test_nothing_that_was_read_is_run_or_unpacked_unchecked() -> None:
    sources = python_sources()
    assert "utils/training/checkpoint.py" in sources
    found = {path: faults(source) for path, source in sources.items()}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "pickle.load(file)",
        "pickle.loads(data)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, Loader=loader)",
        "tar.extractall(folder)",
        "shutil.unpack_archive(path)",
        "eval(text)",
        "exec(text)",
    ],
)
def test_a_planted_call_is_found(source: str) -> None:
    assert faults(f"x = 1\n{source}") == [f"2 {source.split('(')[0]}"]


@pytest.mark.parametrize(
    "source",
    ["torch.load(path, weights_only=True)", "net.eval()", "np.load(path)", "json.load(file)", "yaml.safe_load(text)"],
)
def test_what_reads_data_alone_is_left_alone(source: str) -> None:
    assert not faults(source)
