"""Tests the archives for SageMaker: they are reproducible, copies have their own names, and
ensembles are complete."""

import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from build_engines.archive import archive
from build_engines.errors import BuildError
from serving.repository.model_config import parse_config
from tests.build_engines.models import save_scale
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

TENSORS = (
    'input { name: "x" data_type: TYPE_FP32 dims: [4] }\noutput { name: "y" data_type: '
    "TYPE_FP32 dims: [4] }\n"
)
MODEL = (
    f'platform: "onnxruntime_onnx"\nmax_batch_size: 8\n{TENSORS}instance_group {{ kind: '
    f"KIND_CPU count: 1 }}\n"
)


def step(model: str, source: str, target: str) -> str:
    maps = f'input_map {{ key: "x" value: "{source}" }} output_map {{ key: "y" value: "{target}" }}'
    return f'step {{ model_name: "{model}" model_version: -1 {maps} }}\n'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make an ensemble `twice`, which calls `scale` twice through an inner ensemble, and the
    bundled resnet."""
    folder = tmp_path / "models"
    save_scale(folder / "scale/1/model.onnx")
    (folder / "scale/config.pbtxt").write_text(f'name: "scale"\n{MODEL}')
    steps = {
        "twice": step("scale", "x", "between") + step("once", "between", "y"),
        "once": step("scale", "x", "y"),
    }
    ensemble = f'platform: "ensemble"\nmax_batch_size: 8\n{TENSORS}'
    for name, calls in steps.items():
        (folder / name / "1").mkdir(parents=True)
        text = f"{ensemble}ensemble_scheduling {{\n{calls}}}\n"
        (folder / name / "config.pbtxt").write_text(text)
    shutil.copytree(ROOT / "model_repository/resnet", folder / "resnet")
    return folder


def names(path: Path) -> list[str]:
    with tarfile.open(path) as tar:
        return tar.getnames()


def config_in(path: Path, model: str) -> str:
    with tarfile.open(path) as tar:
        return tar.extractfile(f"{model}/config.pbtxt").read().decode()  # type: ignore[union-attr]


def test_archive_the_model_and_nothing_else(repository: Path, tmp_path: Path) -> None:
    wanted = {
        f"resnet/{path.relative_to(repository / 'resnet')}"
        for path in (repository / "resnet").rglob("*")
    }
    for name in (".hidden", "1/__pycache__/model.pyc", "1/model.onnx.part", ".git/config"):
        (repository / "resnet" / name).parent.mkdir(exist_ok=True)
        (repository / "resnet" / name).write_text("x")
    (path,) = archive("resnet", repository, tmp_path / "out")
    assert path == tmp_path / "out/resnet.tar.gz"
    assert set(names(path)) == wanted | {"resnet"}
    subprocess.run(["tar", "xzf", path, "-C", tmp_path, "--one-top-level=unpacked"], check=True)
    for name in wanted:
        if (repository / name).is_file():
            assert (tmp_path / "unpacked" / name).read_bytes() == (repository / name).read_bytes()


def test_make_the_same_bytes_for_the_same_model(repository: Path, tmp_path: Path) -> None:
    digests = set()
    for number, moment in enumerate((0, 1_000_000_000)):
        for file in repository.rglob("*"):
            os.utime(file, (moment, moment))
            file.chmod(0o700 if number else 0o755)
        (path,) = archive("resnet", repository, tmp_path / f"out{number}")
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_include_the_clients_of_the_repository_in_an_archive(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "clients").mkdir()
    for name in ("once.py", "_helper.py"):
        (repository / "clients" / name).write_text("x = 1\n")
    (path,) = archive("twice", repository, tmp_path / "out")
    assert {"clients/once.py", "clients/_helper.py", "twice/config.pbtxt"} <= set(names(path))
    (copied,) = archive("once", repository, tmp_path / "out", copies=1)
    assert parse_config(config_in(copied, "once_0")).parameters["client"].string_value == "once"
    assert not [
        name
        for name in names(archive("scale", repository, tmp_path / "out")[0])
        if "clients" in name
    ]


def test_rename_copies_and_their_parts(repository: Path, tmp_path: Path) -> None:
    paths = archive("twice", repository, tmp_path / "out", 3)
    assert [path.name for path in paths] == ["twice-0.tar.gz", "twice-1.tar.gz", "twice-2.tar.gz"]
    tops = [{name.partition("/")[0] for name in names(path)} for path in paths]
    assert tops[1] == {"twice_1", "once_1", "scale_1"}
    assert {"twice_1/1", "scale_1/1/model.onnx"} <= set(names(paths[1]))
    steps = parse_config(config_in(paths[1], "twice_1")).ensemble_scheduling.step
    assert [each.model_name for each in steps] == ["scale_1", "once_1"]
    assert parse_config(config_in(paths[1], "scale_1")).name == "scale_1"


def test_keep_client_and_comments_in_a_renamed_copy(repository: Path, tmp_path: Path) -> None:
    own = 'parameters { key: "client" value: { string_value: "bert" } }\n'
    for name, text, client in (("resnet", "", "resnet"), ("scale", own, "bert")):
        (repository / name / "config.pbtxt").write_text(f"# a comment\nmax_batch_size: 1\n{text}")
        (path,) = archive(name, repository, tmp_path, 1)
        config = config_in(path, f"{name}_0")
        assert parse_config(config).parameters["client"].string_value == client
        assert config.startswith("# a comment\n")


@pytest.mark.parametrize(
    ("break_it", "named"),
    [
        (lambda r: shutil.rmtree(r / "scale"), "'scale'"),
        (lambda r: shutil.rmtree(r / "once/1"), "version"),
        (lambda r: (r / "twice/config.pbtxt").write_text("nonsense {"), "twice/config.pbtxt"),
        (lambda r: (r / "twice/config.pbtxt").unlink(), "config.pbtxt"),
    ],
)
def test_refuse_to_archive_an_incomplete_model(
    break_it: object, named: str, repository: Path, tmp_path: Path
) -> None:
    break_it(repository)  # type: ignore[operator]
    with pytest.raises(BuildError) as raised:
        archive("twice", repository, tmp_path / "out")
    assert named in str(raised.value)
    assert not (tmp_path / "out").exists()
