"""Tests how a model gets its client: the one in its folder, one in its repository's clients/, or
one of this project's."""

import os
import sys
from pathlib import Path

import pytest

from clients import CLIENT_ALIASES
from clients.base import Model, ModelClient, TensorSpec
from serving.clients import client_class, forget, make_client, source_of
from serving.errors import ConfigError
from serving.repository.staging import Store
from serving.settings.settings import Settings
from tests.pid1.test_serve import run
from tests.preparation.test_check import findings
from tests.support.harness import (
    ROOT,
    SLEEPER,
    SLEEPER_CLIENT,
    Server,
    make_python_model,
    make_sleeper,
)

OWN = """
from clients.base import ModelClient
from serving.codecs import JSON

class Client(ModelClient):
    codec, example = JSON, b"0"

    def prepare(self, instances, parameters): return {}

    def postprocess(self, outputs, inputs, instances, parameters): return ["NAME"]
"""
TENSORS = """
input { name: "seconds" data_type: TYPE_FP32 dims: [1] }
output { name: "slept" data_type: TYPE_FP32 dims: [1] }
"""


def model(folder: Path, name: str = "mine", **parameters: str) -> Model:
    image, scores = TensorSpec("x", "FP32", (3, 8, 8)), TensorSpec("y", "FP32", (10,))
    return Model(name, folder, (image,), (scores,), 8, parameters)


def write_client(file: Path, name: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(OWN.replace("NAME", name))


def answer(client: ModelClient | None) -> str:
    assert client
    return str(client.postprocess({}, {}, [1], {})[0])


@pytest.mark.unit
def test_load_each_model_s_own_client_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_client(tmp_path / name / "client.py", name)
    clients = [make_client(model(tmp_path / name, name)) for name in ("a", "b")]
    assert [answer(client) for client in clients] == ["a", "b"]
    assert [source_of(client) for client in clients if client] == ["client.py", "client.py"]


@pytest.mark.unit
def test_select_a_client_by_the_parameter_or_the_model_s_name(tmp_path: Path) -> None:
    by_parameter = make_client(model(tmp_path, client="resnet"))
    by_name = make_client(model(tmp_path, name="resnet"))
    assert type(by_parameter) is type(by_name) is not None
    assert by_name and source_of(by_name) == "resnet"
    assert make_client(model(tmp_path)) is None


@pytest.mark.unit
def test_accept_client_names_with_underscores_or_hyphens(tmp_path: Path) -> None:
    for name in ("image_classification", "image-classification"):
        client = make_client(model(tmp_path, client=name))
        assert client and source_of(client) == "image_classification"


@pytest.mark.unit
@pytest.mark.parametrize("name", CLIENT_ALIASES)
def test_keep_the_names_of_well_known_networks_as_clients(name: str) -> None:
    assert issubclass(client_class(name), client_class(CLIENT_ALIASES[name]))
    assert client_class(name) is not client_class(CLIENT_ALIASES[name])
    assert f"`{name}` for `{CLIENT_ALIASES[name]}`" in (ROOT / "docs/calling.md").read_text()


@pytest.mark.unit
def test_refuse_an_unknown_client(tmp_path: Path) -> None:
    write_client(tmp_path / "outside.py", "outside")
    write_client(tmp_path / "models/clients/_helper.py", "helper")
    (tmp_path / "models/mine").mkdir()
    for name in ("resnext", "../outside", "clients/../outside", "_helper", "base"):
        with pytest.raises(ConfigError):
            make_client(model(tmp_path / "models/mine", client=name))


@pytest.mark.unit
@pytest.mark.parametrize("file", ["mine/client.py", "clients/mine.py"])
def test_refuse_a_client_file_without_a_client_class(tmp_path: Path, file: str) -> None:
    write_client(tmp_path / file, "mine")
    (tmp_path / file).write_text("Client = 3\n")
    with pytest.raises(ConfigError) as error:
        make_client(model(tmp_path / "mine"))
    assert str(tmp_path / file) in str(error.value)


@pytest.mark.unit
def test_share_clients_and_modules_within_a_repository(tmp_path: Path) -> None:
    write_client(tmp_path / "clients/word_count.py", "shared")
    file = tmp_path / "clients/word_count.py"
    file.write_text("from ._words import WORD\n" + file.read_text().replace('["shared"]', "[WORD]"))
    (tmp_path / "clients/_words.py").write_text('WORD = "from a module beside it"\n')
    clients = [
        make_client(model(tmp_path / "a", client="word_count")),
        make_client(model(tmp_path / "b", client="word-count")),
        make_client(model(tmp_path / "word_count", "word_count")),
    ]
    assert [answer(client) for client in clients] == ["from a module beside it"] * 3
    assert {source_of(client) for client in clients if client} == {"clients/word_count.py"}


@pytest.mark.unit
def test_prefer_the_model_s_then_the_repository_s_client_to_ours(tmp_path: Path) -> None:
    write_client(tmp_path / "clients/resnet.py", "repository")
    assert answer(make_client(model(tmp_path / "a", client="resnet"))) == "repository"
    assert answer(make_client(model(tmp_path / "resnet", "resnet"))) == "repository"
    write_client(tmp_path / "a/client.py", "folder")
    assert answer(make_client(model(tmp_path / "a", client="resnet"))) == "folder"


@pytest.mark.unit
def test_leave_no_module_of_a_forgotten_client(tmp_path: Path) -> None:
    file = tmp_path / "clients/mine.py"
    write_client(file, "old")
    os.utime(file, (0, 0))
    before = set(sys.modules)
    client = make_client(model(tmp_path / "mine"))
    assert client and len(set(sys.modules) - before) == 2, "a package and its module"
    forget(client)
    assert set(sys.modules) <= before
    # the new file has the same size and second as the old one, which is all that Python compares
    # for bytecode
    write_client(file, "new")
    os.utime(file, (0, 0))
    assert not list(tmp_path.rglob("*.pyc"))
    assert (answer(client), answer(make_client(model(tmp_path / "mine")))) == ("old", "new")


class Importer(str):
    """The name of a module. While it is compared, another thread imports a module."""

    def partition(self, separator: str, /) -> tuple[str, str, str]:
        sys.modules.setdefault("imported_meanwhile", sys)
        return super().partition(separator)


@pytest.mark.unit
def test_forget_a_client_while_another_thread_imports_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_client(tmp_path / "clients/mine.py", "mine")
    client = make_client(model(tmp_path / "mine"))
    assert client
    monkeypatch.setitem(sys.modules, Importer("first"), sys)
    forget(client)
    assert sys.modules.pop("imported_meanwhile", None) is sys
    assert type(client).__module__ not in sys.modules


@pytest.mark.unit
@pytest.mark.parametrize("file", ["mine/client.py", "clients/mine.py"])
def test_stage_no_model_with_its_own_client_if_clients_are_off(tmp_path: Path, file: str) -> None:
    """Every mode stages models with the staged store: a start, a reload and POST /models."""
    make_python_model(tmp_path / "mine", TENSORS, SLEEPER)
    closed = Store(
        tmp_path / "staged", Settings(model_clients=False, device="cpu"), tmp_path / "backends"
    )
    closed.stage(tmp_path / "mine", "mine")
    write_client(tmp_path / file, "mine")
    with pytest.raises(ConfigError) as error:
        closed.stage(tmp_path / "mine", "mine")
    assert str(tmp_path / file) in str(error.value) and "SERVE_MODEL_CLIENTS" in str(error.value)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make two models that share the client `sleeping`, and one with its own."""
    folder = tmp_path / "models"
    named = 'parameters { key: "client" value: { string_value: "sleeping" } }\n'
    for name in ("one", "two"):
        make_python_model(folder / name, TENSORS + named, SLEEPER)
    (folder / "clients").mkdir()
    (folder / "clients/sleeping.py").write_text(SLEEPER_CLIENT)
    make_sleeper(folder)
    return folder


@pytest.mark.stack
def test_use_a_repository_s_client_and_ignore_its_folder_as_a_model(
    repository: Path, tmp_path: Path
) -> None:
    server = Server(tmp_path, repository).wait_ready()
    for name in ("one", "two", "sleeper"):
        assert server.post(json={"model_name": name, "instances": [0]}).json()["predictions"] == [
            0.0
        ]
    clients = {each["name"]: each["client"] for each in server.get("/models").json()["models"]}
    assert clients == {
        "one": "clients/sleeping.py",
        "two": "clients/sleeping.py",
        "sleeper": "client.py",
    }
    assert not [
        entry
        for entry in server.entries("serve", level="warning")
        if "clients" in str(entry["message"])
    ]
    server.stop_later()


@pytest.mark.stack
def test_report_a_broken_client_of_a_repository_for_each_of_its_models(repository: Path) -> None:
    names = ("one", "two", "sleeper")
    assert findings(repository, *names) == []
    (repository / "clients/sleeping.py").write_text("def :\n")
    lines = findings(repository, *names)
    assert [line.partition(":")[0] for line in lines if "SyntaxError" in line] == ["one", "two"]


@pytest.mark.stack
def test_stop_the_start_naming_a_client_with_a_syntax_error(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "clients/sleeping.py").write_text("def :\n")
    server = Server(tmp_path, repository, SERVE_LOAD_MODELS="one")
    assert server.wait_ended() != 0
    assert "SyntaxError" in str(server.entries("serve")[-1]["message"])


@pytest.mark.stack
def test_turn_clients_of_repositories_off_by_a_setting(repository: Path, tmp_path: Path) -> None:
    done = run("--check", SERVE_MODEL_REPOSITORY=str(repository), SERVE_MODEL_CLIENTS="false")
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if "SERVE_MODEL_CLIENTS" in line]
    files = {
        "one": "clients/sleeping.py",
        "sleeper": "sleeper/client.py",
        "two": "clients/sleeping.py",
    }
    assert sorted(line.partition(":")[0] for line in lines) == sorted(files)
    assert all(str(repository / file) in "\n".join(lines) for file in files.values())
    (repository / "clients/sleeping.py").rename(repository / "clients/_sleeping.py")
    (repository / "one/config.pbtxt").write_text(f'backend: "python"\n{TENSORS}')
    variables = {"SERVE_MODEL_CLIENTS": "false", "SERVE_LOAD_MODELS": "one"}
    server = Server(tmp_path, repository, **variables).wait_ready()
    assert server.get("/models").json()["models"][0]["client"] is None
    server.stop_later()
