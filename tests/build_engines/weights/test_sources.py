"""What --weights names: a remedy for what cannot be built, and models of the hub."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from build_engines.__main__ import main
from build_engines.errors import BuildError
from build_engines.weights import sources
from tests.support.harness import PATIENCE, ROOT

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("net.h5", "tf2onnx.convert --keras"),
        ("net.tflite", "tf2onnx.convert --tflite"),
        ("net.engine", r"model\.plan of a model folder"),
        ("model.safetensors", r"name the folder that has their config\.json"),
        ("net.ckpt", "torch.onnx.export"),
        ("net.mar", "is a zip file"),
        ("net.cbm", "format='onnx'"),
        ("net.gguf", "no backend here"),
        ("model.tar.gz", "unpack it"),
        ("model.xml", r"model\.xml of a model folder"),
        ("notes.doc", r"LightGBM's model\.txt$"),
    ],
)
def test_a_file_of_another_kind_has_a_remedy(name: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\0")
    with pytest.raises(BuildError, match=remedy):
        sources.kind(tmp_path / name)


@pytest.mark.parametrize(
    ("file", "remedy"),
    [
        ("config.pbtxt", "it is a model folder, which needs no build"),
        ("resnet/config.pbtxt", "SERVE_MODEL_REPOSITORY names it"),
        ("saved_model.pb", "tf2onnx.convert --saved-model"),
        ("model_index.json", "diffusers"),
        ("adapter_config.json", "merge_and_unload"),
        ("net.onnx", "name the ONNX file"),
        ("readme.txt", "what save_pretrained writes"),
    ],
)
def test_a_folder_of_another_kind_has_a_remedy(file: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(b"\0")
    with pytest.raises(BuildError, match=remedy):
        sources.kind(tmp_path)


def test_a_checkpoint_that_does_not_say_what_it_takes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert main(["build", "own", "--weights", str(tmp_path), "--out", str(tmp_path / "models")]) == 2
    assert "gpt2" in capsys.readouterr().err


def test_a_bert_without_its_sizes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    save_file({"weight": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    assert main(["build", "own", "--weights", str(tmp_path), "--out", str(tmp_path / "models")]) == 1
    assert "num_hidden_layers" in capsys.readouterr().err


def test_without_the_hub_it_says_how_to_bring_the_model(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build_engines", "build", "words", "--weights", "someone/model"]
    environ = {"PATH": "/usr/bin:/bin", "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, cwd=ROOT, env=environ, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert "hf download someone/model --local-dir FOLDER" in done.stderr
