"""Tests Python models that bring their own packages (EXECUTION_ENV_PATH), in real servers, and the
mistakes that are reported."""

import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from serving.host.tritonserver import PYTHON
from serving.repository.model_config import parse_config
from serving.repository.packages import MOST_UNPACKED, STUB, mistake_of_packages
from tests.support.harness import ONE_INSTANCE, Server, tensor

MODEL = """
import numpy as np
import packaging
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.answer(request)]) for request in requests]

    def answer(self, request):
        twice = 2 * pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        answer = np.array([packaging.__version__, str(twice[0])], dtype=object)
        return pb_utils.Tensor("answer", answer)
"""
CONFIG = f"""
backend: "python"
input {{ name: "x" data_type: TYPE_INT32 dims: [1] }}
output {{ name: "answer" data_type: TYPE_STRING dims: [2] }}
{ONE_INSTANCE}"""
OWN = (
    'parameters { key: "EXECUTION_ENV_PATH" value { string_value: '
    '"$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }\n'
)
CALL = {"inputs": [tensor([21], [1], datatype="INT32")]}
GOOD = {"bin/activate": "", f"lib/python{PYTHON}/site-packages/numpy-1.26.4.dist-info/METADATA": ""}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack a virtual environment with venv-pack. It has this environment's NumPy and another
    version of `packaging`."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    packages = folder / f"env/lib/python{PYTHON}/site-packages"
    for path in (Path(sys.prefix) / f"lib/python{PYTHON}/site-packages").glob("numpy[.-]*"):
        shutil.copytree(path, packages / path.name)
    numpy = Path(sys.prefix) / f"lib/python{PYTHON}/site-packages/numpy"
    shutil.copytree(numpy, packages / "numpy", ignore=shutil.ignore_patterns("tests", "*.h", "*.a"))
    (packages / "packaging").mkdir()
    (packages / "packaging/__init__.py").write_text('__version__ = "0.1"\n')
    pack = [
        sys.executable,
        "-m",
        "venv_pack",
        "--prefix",
        folder / "env",
        "--output",
        folder / "env.tar.gz",
    ]
    subprocess.run([*map(str, pack), "--compress-level", "1", "--quiet"], check=True)
    return folder / "env.tar.gz"


def write(folder: Path, packed: Path | None = None) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1/model.py").write_text(MODEL)
    (folder / "config.pbtxt").write_text(CONFIG + (OWN if packed else ""))
    if packed:
        os.link(packed, folder / "env.tar.gz")


def answer(server: Server, path: str) -> list[str]:
    reply = server.post(path, json=CALL)
    assert reply.status_code == 200, reply.text
    data: list[str] = reply.json()["outputs"][0]["data"]
    return data


@pytest.mark.stack
def test_serve_an_archive_with_its_own_packages(packed: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    write(root / "own/model/own", packed)
    write(root / "plain/model/plain")
    write(root / "broken/model/broken", packed)
    (root / "broken/model/broken/env.tar.gz").unlink()
    server = Server(tmp_path, root, SAGEMAKER_MULTI_MODEL="true").wait_ready()
    for name, status in (("own", 200), ("plain", 200), ("broken", 400)):
        loaded = server.post("/models", json={"model_name": name, "url": f"{root}/{name}/model"})
        assert loaded.status_code == status, loaded.text
    assert answer(server, "/models/own/invoke") == ["0.1", "42"]
    assert answer(server, "/models/plain/invoke") == [version("packaging"), "42"]
    server.stop_later()


def archive(model: Path, links: dict[str, str]) -> None:
    """Write an archive of empty files, and of links for the names that have a target."""
    with tarfile.open(model / "env.tar.gz", "w:gz") as tar:
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = (
                (tarfile.SYMTYPE, target) if target else (tarfile.REGTYPE, "")
            )
            tar.addfile(member, io.BytesIO())


@pytest.mark.unit
@pytest.mark.parametrize("prefix", ["", "./"])
def test_accept_packages_that_the_stub_can_use(prefix: str, tmp_path: Path) -> None:
    archive(tmp_path, {prefix + name: target for name, target in GOOD.items()})
    assert mistake_of_packages(tmp_path, parse_config(OWN)) == ""
    assert mistake_of_packages(tmp_path / "absent", parse_config(CONFIG)) == ""


@pytest.mark.unit
def test_check_an_unpacked_environment_too(tmp_path: Path) -> None:
    for name in GOOD:
        (tmp_path / "env.tar.gz" / name).parent.mkdir(parents=True)
        (tmp_path / "env.tar.gz" / name).touch()
    assert mistake_of_packages(tmp_path, parse_config(OWN)) == ""
    (tmp_path / "env.tar.gz/bin/activate").unlink()
    assert "bin/activate" in mistake_of_packages(tmp_path, parse_config(OWN))


@pytest.mark.unit
@pytest.mark.parametrize(
    ("entries", "named"),
    [
        (None, "EXECUTION_ENV_PATH"),
        ({"numpy/__init__.py": ""}, "bin/activate"),
        ({"bin/activate": ""}, f"no Python .* {PYTHON}"),
        (
            {"bin/activate": "", "lib/python3.8/site-packages/numpy-1.24.4.dist-info": ""},
            f"3.8.* {PYTHON}",
        ),
        ({"bin/activate": "", f"lib/python{PYTHON}/os.py": ""}, "numpy<2"),
        (
            {"bin/activate": "", f"lib/python{PYTHON}/site-packages/numpy-2.1.0.dist-info": ""},
            "numpy<2",
        ),
        (
            GOOD | {"bin/python3": "python3.11", "bin/python3.11": "/absent/python3.11"},
            "bin/python3.11",
        ),
    ],
)
def test_name_packages_that_the_stub_cannot_use(
    entries: dict[str, str], named: str, tmp_path: Path
) -> None:
    if entries:
        archive(tmp_path, entries)
    assert re.search(named, mistake_of_packages(tmp_path, parse_config(OWN)))


@pytest.mark.unit
def test_accept_another_python_if_the_model_brings_its_stub(tmp_path: Path) -> None:
    archive(
        tmp_path, {"bin/activate": "", "lib/python3.8/site-packages/numpy-1.24.4.dist-info": ""}
    )
    (tmp_path / STUB).touch()
    assert mistake_of_packages(tmp_path, parse_config(OWN)) == ""


@pytest.mark.unit
@pytest.mark.parametrize("name", ["lib/same", "lib/{}"])
def test_refuse_packages_of_too_many_files(name: str, tmp_path: Path) -> None:
    most = len(GOOD) + 20
    members = [tarfile.TarInfo(each).tobuf() for each in GOOD]
    members += [tarfile.TarInfo(name.format(number)).tobuf() for number in range(21)]
    (tmp_path / "env.tar.gz").write_bytes(gzip.compress(b"".join(members[:-1])))
    assert mistake_of_packages(tmp_path, parse_config(OWN), most) == ""
    (tmp_path / "env.tar.gz").write_bytes(gzip.compress(b"".join(members)))
    mistake = mistake_of_packages(tmp_path, parse_config(OWN), most)
    assert f"more than {most} files" in mistake


@pytest.mark.unit
def test_refuse_packages_of_too_many_bytes_before_unpacking_them(tmp_path: Path) -> None:
    header = tarfile.TarInfo("lib/zeros")
    header.size = MOST_UNPACKED
    (tmp_path / "env.tar.gz").write_bytes(gzip.compress(header.tobuf()))
    assert "more than 16 GB" in mistake_of_packages(tmp_path, parse_config(OWN))


@pytest.mark.unit
@pytest.mark.parametrize("keep", [20, 100])
def test_name_a_damaged_archive(keep: int, tmp_path: Path) -> None:
    archive(tmp_path, {f"lib/{number}": "" for number in range(200)})
    whole = (tmp_path / "env.tar.gz").read_bytes()
    (tmp_path / "env.tar.gz").write_bytes(whole[:keep])
    assert "EXECUTION_ENV_PATH" in mistake_of_packages(tmp_path, parse_config(OWN))
    (tmp_path / "env.tar.gz").write_bytes(b"not an archive")
    assert "EXECUTION_ENV_PATH" in mistake_of_packages(tmp_path, parse_config(OWN))
