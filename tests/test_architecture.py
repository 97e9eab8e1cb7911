"""Tests that packages import only those below them, that each library is used in one place only,
and that a client has everything it needs."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from build_engines.families.find_family import FAMILIES
from clients.base import ModelClient
from serving.clients import client_class, client_names

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[1]
# lists each quirk of Triton, its workaround and the tests for it
QUIRKS = ROOT / "serving/triton/quirks.py"
SHARED = ("errors", "headers", "sessions", "budget", "named_value", "request_memory")
# The packages, the lowest first. A file belongs to the package that contains it, so new files are
# covered too.
PACKAGES: dict[str, tuple[str, ...]] = {
    "quirks": ("serving/triton/quirks.py",),
    "host": ("serving/host/*.py",),
    "shared": tuple(f"serving/{name}.py" for name in SHARED),
    "codecs": ("serving/codecs/*.py",),
    "settings": ("serving/settings/*.py",),
    "repository": ("serving/repository/*.py",),
    "pid1": ("serving/pid1/*.py", "serve"),
    "triton": ("serving/triton/*.py",),
    "clients": ("clients/*.py", "clients/_text/*.py"),
    "model_status": ("serving/clients.py", "serving/model_status/*.py"),
    "bodies": ("serving/request.py", "serving/job.py", "serving/bodies/*.py"),
    **{name: (f"serving/{name}/*.py",) for name in ("model_lifecycle", "preparation")},
    "front": ("serving/front/*.py", "predictor.py", "wsgi.py"),
}
STANDARD = set(sys.stdlib_module_names)
FLASK = {"flask", "gunicorn", "prometheus_client"}
TRITON = {"grpc", "tritonclient", "urllib3"}


@cache
def files(package: str) -> list[Path]:
    return sorted(path for pattern in PACKAGES[package] for path in ROOT.glob(pattern))


@cache
def imported(path: Path) -> set[str]:
    """Return the names of the modules in a file's import statements."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return names


@cache
def package_of(module: str) -> str | None:
    """Return the package of a module of this project; None for other modules and for packages
    themselves."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return next((package for package in PACKAGES if file in files(package)), None)


@cache
def imports_between() -> set[tuple[str, str]]:
    """Return pairs of the importing and the imported package."""
    pairs = {
        (package, package_of(name))
        for package in PACKAGES
        for path in files(package)
        for name in imported(path)
    }
    return {(package, other) for package, other in pairs if other not in (package, None)}


def tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)}


def files_of(*packages: str) -> list[Path]:
    return [path for package in packages for path in files(package)]


def test_put_every_file_into_a_package() -> None:
    modules = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "serving").rglob("*.py")]
    names = [str(module).replace("/", ".").removesuffix(".__init__") for module in modules]
    assert [name for name in names if name != "serving" and package_of(name) is None] == []


def test_import_no_package_from_above() -> None:
    order = list(PACKAGES)
    assert [pair for pair in imports_between() if order.index(pair[1]) > order.index(pair[0])] == []


def test_keep_pid1_and_the_front_from_importing_each_other() -> None:
    known = {other for package, other in imports_between() if package == "pid1"}
    assert known <= {"host", "shared", "settings", "repository"}
    assert [package for package, other in imports_between() if other == "pid1"] == []


@pytest.mark.parametrize("path", files_of("host", "settings", "pid1"), ids=str)
def test_import_only_the_standard_library_in_pid1(path: Path) -> None:
    assert tops(path) - STANDARD <= {"serving"}


@pytest.mark.parametrize("path", files_of(*PACKAGES), ids=str)
def test_import_flask_only_in_the_front_and_grpc_only_in_the_gateway(path: Path) -> None:
    package = next(package for package in PACKAGES if path in files(package))
    assert package == "front" or not tops(path) & FLASK
    assert package == "triton" or not tops(path) & TRITON


def test_import_obstore_only_for_buckets_and_only_when_there_is_one() -> None:
    importing = [path.name for path in files_of(*PACKAGES) if "obstore" in tops(path)]
    assert importing == ["bucket.py"]
    code = "import sys, serving.model_lifecycle.__main__; sys.exit('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("path", files_of("clients"), ids=str)
def test_import_neither_the_app_nor_torch_in_clients(path: Path) -> None:
    assert not tops(path) & {"predictor", "wsgi", "torch", "werkzeug"}


@pytest.mark.parametrize("client", client_names())
def test_name_the_missing_parts_of_a_family(client: str) -> None:
    """CONTRIBUTING.md, "Add a family of models", has the same list."""
    words = {client, client.replace("_", "-")}
    tests = "".join(path.read_text() for path in (ROOT / "tests/clients").glob("*.py"))
    wanted = {
        f"class Client(ModelClient) in clients/{client}.py": issubclass(
            client_class(client), ModelClient
        ),
        f"a FAMILY with client={client!r} in build_engines/families/{client}.py": client
        in {family.client for family in FAMILIES},
        f"a test in tests/clients that names {client}": any(word in tests for word in words),
        f"a row in docs/calling.md that begins with `{client}`": f"| `{client}`"
        in (ROOT / "docs/calling.md").read_text(),
        f"a row in docs/models.md that names {' or '.join(sorted(words))}": any(
            word in (ROOT / "docs/models.md").read_text() for word in words
        ),
    }
    missing = [what for what, is_there in wanted.items() if not is_there]
    assert not missing, "\n".join(missing)


def test_list_every_family_that_has_a_module() -> None:
    modules = {
        path.stem
        for path in (ROOT / "build_engines/families").glob("*.py")
        if re.search(r"^FAMILY = ", path.read_text(), re.MULTILINE)
    }
    assert {family.client or "tensors" for family in FAMILIES} == modules
    assert {family.client for family in FAMILIES if family.client} == {*client_names()}


def test_name_only_existing_files_in_quirks() -> None:
    named = set(re.findall(r"[a-z_]+/[\w/]+\.(?:py|c)\b", QUIRKS.read_text()))
    assert len(named) > 10
    assert [
        path
        for path in named
        if not (ROOT / path).exists() and not (ROOT / "serving" / path).exists()
    ] == []


def test_name_versions_of_triton_only_in_quirks() -> None:
    files = [path for path in (ROOT / "serving").rglob("*.py") if path != QUIRKS]
    assert [path.name for path in files if re.search(r"24\.10|Triton 2\.", path.read_text())] == []
