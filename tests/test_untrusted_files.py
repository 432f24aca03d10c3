"""What comes from elsewhere, a run or an archive, is read as data: no call that would run or unpack it unchecked."""

import ast
from collections.abc import Iterator

from tests.test_floors import python_sources

# they run what a file says, or write wherever it says
FORBIDDEN = {"eval", "exec", "pickle.load", "pickle.loads", "pickle.Unpickler", "shutil.unpack_archive"}
SAFE = {"yaml.SafeLoader"}


def faults(source: str) -> Iterator[str]:
    """Line and name of each such call; `torch.load` and `numpy.load` are told to refuse pickles, or do so."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name, given = ast.unparse(node.func), {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if (
                name in FORBIDDEN
                or name.endswith(".extractall")
                or (name == "torch.load" and given.get("weights_only") != "True")
                or (name == "np.load" and given.get("allow_pickle", "False") != "False")
                or (name == "yaml.load" and given.get("Loader", ast.unparse(node.args[-1])) not in SAFE)
            ):
                yield f"{node.lineno} {name}"


def test_nothing_that_was_read_is_run_or_unpacked_unchecked() -> None:
    found = {path: list(faults(source)) for path, source in python_sources().items()}
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert list(faults("x = 1\ntar.extractall(folder)\ntorch.load(path)")) == ["2 tar.extractall", "3 torch.load"]
