"""Tests the ONNX files of BERT checkpoints, which are written without torch, against transformers
with torch."""

import filecmp
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from build_engines.build import build
from build_engines.errors import BuildError, UsageError
from build_engines.families import bundled
from build_engines.families.image_classification import FAMILY
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from build_engines.weights import Weights
from tests.build_engines.models import exported, session
from tests.clients.text_models import SMALL, save_tokenizer
from tests.support.harness import PATIENCE, ROOT

pytestmark = pytest.mark.full

Arrays = dict[str, NDArray[Any]]
WORDS = 60  # number of words in the vocabulary
POOLED = [{"type": f"sentence_transformers.models.{name}"} for name in ("Transformer", "Pooling")]


def random_model(**changes: Any) -> Any:
    """Return a small transformers model whose biases and norms are random too."""
    torch.manual_seed(0)
    model = transformers.BertModel(
        transformers.BertConfig(vocab_size=WORDS, **SMALL, **changes)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.normal_(0.5, 0.3)
    return model


def build_checkpoint(checkpoint: Path, task: str, folder: Path) -> ModelSpec:
    """Write the files that Triton needs, except the configuration. The checkpoint gets a
    tokenizer."""
    save_tokenizer(checkpoint, "pieces")
    return exported(Request("own", client="bert", task=task), checkpoint, folder)


def batch(length: int = 11) -> Arrays:
    """Return three rows of different lengths (at least 3 tokens) that contain both token types."""
    rng = np.random.default_rng(0)
    mask = (np.arange(length) < np.array([[length], [length - 2], [2]])).astype(np.int64)
    types = np.tile(np.arange(length) > 4, (3, 1)).astype(np.int64)
    ids = rng.integers(5, WORDS, (3, length))
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": types}


def difference(folder: Path, model: Any, inputs: Arrays) -> float:
    """Return the largest difference between the states of the two models, ignoring padding."""
    with torch.no_grad():
        theirs = model(**{name: torch.from_numpy(array) for name, array in inputs.items()})[
            "last_hidden_state"
        ].numpy()
    ours, kept = session(folder / "1/model.onnx").run(None, inputs)[0], inputs["attention_mask"] > 0
    assert ours.shape == theirs.shape
    return float(np.abs(ours[kept] - theirs[kept]).max())


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_get_the_answers_of_transformers_from_the_graph(activation: str, tmp_path: Path) -> None:
    model = random_model(hidden_act=activation)
    model.save_pretrained(tmp_path / "checkpoint")
    build_checkpoint(tmp_path / "checkpoint", "embedding", tmp_path / "model")
    for length in (3, 11, 24):
        assert difference(tmp_path / "model", model, batch(length)) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_read_half_precision_and_old_names(dtype: torch.dtype, tmp_path: Path) -> None:
    model = random_model().to(dtype)
    model.save_pretrained(tmp_path / "checkpoint", max_shard_size="20KB")
    for file in (tmp_path / "checkpoint").glob("*.safetensors"):
        old = {
            f"bert.{k}".replace("Norm.weight", "Norm.gamma"): v for k, v in load_file(file).items()
        }
        save_file({k.replace("Norm.bias", "Norm.beta"): v for k, v in old.items()}, file)
    build_checkpoint(tmp_path / "checkpoint", "embedding", tmp_path)
    assert len(list((tmp_path / "checkpoint").glob("*.safetensors"))) > 1
    assert difference(tmp_path, model.float(), batch()) < 1e-4


@pytest.mark.parametrize("name", ["bert", "efficientnet", "resnet", "yolov4_tiny", "yolov5"])
def test_build_a_bundled_model_without_torch_and_transformers(name: str, tmp_path: Path) -> None:
    code = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocker())
import pathlib
from build_engines.__main__ import main
code = main(["build", *sys.argv[1:]])
sys.exit(code or "torch" in sys.modules)
"""
    command = [sys.executable, "-c", code, name, "--out", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=PATIENCE)
    committed, built = ROOT / "model_repository" / name, tmp_path / name
    files = {f"{path.relative_to(committed)}" for path in committed.rglob("*") if path.is_file()}
    # written by the build that made the folder, which may be an older version
    files -= {"build.json"}
    assert {"1/model.onnx", "config.pbtxt", "configs/cpu.pbtxt"} <= files
    assert filecmp.cmpfiles(committed, built, files, shallow=False)[1:] == ([], [])


@pytest.mark.parametrize(
    ("task", "change", "named"),
    [
        ("fill-mask", {}, "its task is embedding, not fill-mask"),
        ("fill-mask", {"architectures": []}, r"cls\.predictions"),
        ("embedding", {"model_type": "no-such"}, "embedding"),
        # the checkpoint has weights that the graph does not use
        ("embedding", {"num_hidden_layers": 1}, r"encoder\.layer\.1\."),
        ("embedding", {"num_hidden_layers": 3}, r"encoder\.layer\.2\."),
        ("translation", {}, "fill-mask"),
    ],
)
def test_refuse_another_checkpoint_or_task(
    task: str, change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    random_model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(BuildError, match=named):
        build_checkpoint(tmp_path, task, tmp_path / "model")


def test_refuse_a_checkpoint_without_safetensors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BuildError, match="save_pretrained"):
        build_checkpoint(tmp_path, "embedding", tmp_path / "model")


@pytest.mark.parametrize(
    ("files", "settings"),
    [
        ({}, {}),
        # the network does this itself
        ({"1_Pooling/config.json": {"pooling_mode_cls_token": True}}, {}),
        (
            {"1_Pooling/config.json": {"pooling_mode_mean_tokens": True}, "modules.json": POOLED},
            {"normalize": "false"},
        ),
        ({"modules.json": [*POOLED, {"type": "sentence_transformers.models.Normalize"}]}, {}),
    ],
)
def test_leave_what_follows_pooling_to_the_client(
    files: dict[str, Any], settings: dict[str, str], tmp_path: Path
) -> None:
    random_model().save_pretrained(tmp_path / "checkpoint")
    for name, content in files.items():
        (tmp_path / "checkpoint" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "checkpoint" / name).write_text(json.dumps(content))
    draft = build_checkpoint(tmp_path / "checkpoint", "", tmp_path / "model")
    assert draft.settings == settings | {
        "pad_to_multiple_of": "8",
        "ragged_batches": "24",
        "task": "embedding",
    }


def test_refuse_settings_for_what_the_network_does_itself(tmp_path: Path) -> None:
    for request in (
        Request("resnet", settings={"mean": "0.1"}, repository=tmp_path),
        Request("yolov5", size=320),
    ):
        with pytest.raises(UsageError):
            build(request)


def test_refuse_a_network_that_is_not_the_committed_one(tmp_path: Path) -> None:
    (tmp_path / "resnet/1").mkdir(parents=True)
    (tmp_path / "resnet/1/model.onnx").write_bytes(b"another")
    with pytest.raises(BuildError, match="not the committed network"):
        bundled.write_model(FAMILY, Weights(None), Request("resnet"), tmp_path / "models", tmp_path)
