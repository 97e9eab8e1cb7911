"""Imports point one way, each room knows what it may, and what a client needs is complete."""

import re
import sys
from pathlib import Path

import pytest

from clients.base import ModelClient
from serving.inference.registry import families
from tests.support.imports import ROOMS, ROOT, arrows, files, imported, room_of

pytestmark = pytest.mark.unit

STANDARD = set(sys.stdlib_module_names)
FLASK = {"flask", "gunicorn", "prometheus_client"}
TRITON = {"grpc", "tritonclient", "urllib3"}


def tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)}


def in_rooms(*rooms: str) -> list[Path]:
    return [path for room in rooms for path in files(room)]


def test_every_file_is_in_a_room() -> None:
    modules = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "serving").rglob("*.py")]
    names = [str(module).replace("/", ".").removesuffix(".__init__") for module in modules]
    assert [name for name in names if name != "serving" and room_of(name) is None] == []


def test_no_room_imports_one_above_it() -> None:
    floors = list(ROOMS)
    assert [(room, other) for room, other in arrows() if floors.index(other) > floors.index(room)] == []


def test_pid_1_and_the_front_do_not_know_each_other() -> None:
    known = {other for room, other in arrows() if room == "supervisor"}
    assert known <= {"host", "words", "settings", "repository"}
    assert [room for room, other in arrows() if other == "supervisor"] == []


@pytest.mark.parametrize("path", in_rooms("host", "settings", "supervisor"), ids=str)
def test_pid_1_needs_the_standard_library_only(path: Path) -> None:
    assert tops(path) - STANDARD <= {"serving"}


@pytest.mark.parametrize("path", in_rooms(*ROOMS), ids=str)
def test_only_the_front_knows_the_web_and_only_the_gateway_grpc(path: Path) -> None:
    room = next(room for room in ROOMS if path in files(room))
    assert room == "front" or not tops(path) & FLASK
    assert room == "triton" or not tops(path) & TRITON


@pytest.mark.parametrize("path", in_rooms("clients"), ids=str)
def test_clients_know_nothing_of_triton_and_need_no_torch(path: Path) -> None:
    assert not tops(path) & {"predictor", "wsgi", "torch", "werkzeug"}


@pytest.mark.parametrize("family", families())
def test_every_client_is_complete(family: str) -> None:
    """A class, a test, a place on the page of calls; one whose example is not made of the model, a model folder with
    it."""
    client = __import__(f"clients.{family}", fromlist=["Client"]).Client
    assert issubclass(client, ModelClient)
    tests = "".join(path.read_text() for path in (ROOT / "tests/clients").glob("*.py"))
    assert re.search(rf"\b{family}\b|{family.replace('_', '-')}", tests)
    assert f"| `{family}`" in (ROOT / "docs/calling.md").read_text()
    if not hasattr(client, "example"):
        return
    assert (ROOT / f"model_repository/{family}/config.pbtxt").is_file()
    assert list((ROOT / f"model_repository/{family}").glob("example.*"))
