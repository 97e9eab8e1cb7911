"""Imports between the packages of build_engines point one way."""

import ast
from pathlib import Path

import pytest

from tests.support.harness import ROOT

FLOORS = (
    ("build_engines/__main__.py",),
    ("build_engines/commands/*.py",),
    ("build_engines/ensembles/*.py", "build_engines/tuning/*.py"),
    ("build_engines/building/*.py",),
    ("build_engines/demos/*.py", "build_engines/engines/*.py"),
    ("build_engines/families/*.py", "build_engines/measurement/*.py"),
    ("build_engines/model_folder/*.py", "build_engines/digits/*.py"),
    ("build_engines/weights/*.py",),
    ("build_engines/request.py", "build_engines/progress.py"),
    ("build_engines/recipes.py", "build_engines/errors.py"),
)
COPIED = "build_engines/ensembles/model_files"


def room(path: Path) -> str:
    """The package of a file, or the file itself where it lies in no package: build_engines.weights."""
    inside = path.relative_to(ROOT).with_suffix("")
    return ".".join(inside.parts[:2])


def imported(path: Path) -> set[str]:
    """The rooms of build_engines that a file imports from, late imports among them."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {".".join(name.split(".")[:2]) for name in names if name.startswith("build_engines.")}


def files(floor: tuple[str, ...]) -> list[Path]:
    return sorted(path for pattern in floor for path in ROOT.glob(pattern))


def allowed(number: int) -> set[str]:
    return {room(path) for floor in FLOORS[number + 1 :] for path in files(floor)}


@pytest.mark.parametrize("number", range(len(FLOORS)))
def test_a_package_imports_only_from_packages_below_it(number: int) -> None:
    below = allowed(number)
    for path in files(FLOORS[number]):
        assert imported(path) - {room(path)} <= below, path


def test_every_module_has_its_floor() -> None:
    covered = {path for floor in FLOORS for path in files(floor)}
    every = {path for path in (ROOT / "build_engines").rglob("*.py") if path.parent != ROOT / COPIED}
    assert every - covered == {ROOT / "build_engines/__init__.py"}


def test_files_that_are_copied_into_model_folders_import_nothing_of_build_engines() -> None:
    assert not [path for path in (ROOT / COPIED).glob("*.py") if imported(path)]


def test_no_module_is_imported_by_its_name_in_a_string() -> None:
    found = [path for path in (ROOT / "build_engines").rglob("*.py") if "importlib.import_module" in path.read_text()]
    assert found == []


def test_every_package_says_what_it_knows() -> None:
    packages = {path.parent for path in (ROOT / "build_engines").rglob("*.py")}
    for package in packages:
        assert len((package / "__init__.py").read_text().splitlines()) == 1, package
