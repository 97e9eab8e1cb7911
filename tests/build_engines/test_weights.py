"""Tests which remedy an error names for weights that cannot be built, and models on the Hugging
Face hub."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from build_engines.errors import BuildError
from build_engines.weights import kind_of
from tests.build_engines.models import run
from tests.support.harness import PATIENCE, ROOT

pytestmark = pytest.mark.full


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("net.h5", "tf2onnx.convert --keras"),
        ("net.engine", r"model\.plan"),
        ("model.safetensors", r"config\.json"),
        ("net.ckpt", "torch.onnx.export"),
        ("net.gguf", "gguf"),
        ("model.tar.gz", "tar.gz"),
        ("notes.doc", r"model\.txt"),
        ("folder/config.pbtxt", "model folder"),
        ("folder/resnet/config.pbtxt", "SERVE_MODEL_REPOSITORY"),
        ("folder/saved_model.pb", "tf2onnx.convert --saved-model"),
        ("folder/model_index.json", "diffusers"),
        ("folder/adapter_config.json", "merge_and_unload"),
        ("folder/net.onnx", "ONNX"),
        ("folder/readme.txt", "save_pretrained"),
    ],
)
def test_say_what_to_do_with_another_kind_of_file_or_folder(
    name: str, remedy: str, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"\0")
    with pytest.raises(BuildError, match=remedy):
        kind_of(tmp_path / "folder" if name.startswith("folder/") else tmp_path / name)


def test_refuse_a_checkpoint_that_does_not_declare_its_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert run(f"build own --weights {tmp_path} --out {tmp_path}/models") == 2
    assert "gpt2" in capsys.readouterr().err


@pytest.mark.parametrize("config", ["not JSON", "[]", "\udcff", "[" * 100_000])
def test_refuse_a_checkpoint_with_a_broken_config(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_bytes(config.encode(errors="surrogateescape"))
    assert run(f"build own --weights {tmp_path} --out {tmp_path}/models") == 1
    assert "config.json is not" in capsys.readouterr().err


def test_ask_for_an_onnx_file_instead_of_an_exported_program(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    torch.export.save(program, tmp_path / "net.pt2")
    with pytest.raises(BuildError, match=r"torch\.onnx\.export\(torch\.export\.load"):
        kind_of(tmp_path / "net.pt2")


@pytest.mark.parametrize("client", ["", "--client image-classification", "--client bert"])
@pytest.mark.parametrize("is_zip", [True, False])
def test_ask_to_export_a_network_that_torch_saved_whole(
    client: str, is_zip: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = torch.nn.Linear(2, 2)
    torch.save(network, tmp_path / "net.pt", _use_new_zipfile_serialization=is_zip)
    words = f"build own --weights {tmp_path}/net.pt --out {tmp_path}/models"
    assert run(f"{words} {client}") == 2
    assert "torch.onnx.export" in capsys.readouterr().err


def test_say_how_to_bring_a_model_without_the_hub(tmp_path: Path) -> None:
    command = f"{sys.executable} -m build_engines build words --weights someone/model-v1.5"
    environ = {
        "PATH": "/usr/bin:/bin",
        "HF_HOME": str(tmp_path),
        "HF_ENDPOINT": "http://127.0.0.1:9",
    }
    done = subprocess.run(
        f"{command} --out {tmp_path}".split(),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environ,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert "hf download someone/model-v1.5 --local-dir FOLDER" in done.stderr


def test_take_no_missing_file_for_a_model_on_the_hub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"build own --weights missing/net.onnx --out {tmp_path}") == 2
    assert "there is no such file" in capsys.readouterr().err
