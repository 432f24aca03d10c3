"""What is installed is one version of each package: two of them write the same files, and whoever is last wins."""

import tomllib

from packaging.markers import Marker

from const.path import ROOT


def test_no_package_is_installed_twice() -> None:
    """Poetry may lock a second version for machines that torch is not made for, with markers that fit all machines.

    After `poetry lock`, remove the version that torch does not name from poetry.lock.
    """
    locked = tomllib.loads((ROOT / "poetry.lock").read_text(encoding="utf-8"))["package"]
    here = []
    for package in locked:
        markers = package.get("markers", "")  # one for all groups of dependencies, or one for each
        each = markers.values() if isinstance(markers, dict) else [markers]
        if any(not marker or Marker(marker).evaluate({"extra": ""}) for marker in each):
            here.append(package["name"])
    assert "torch" in here
    assert sorted({name for name in here if here.count(name) > 1}) == []
