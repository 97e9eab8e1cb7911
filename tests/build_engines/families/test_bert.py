"""BERT checkpoints as ONNX: equal to transformers on torch, made without torch."""

import filecmp
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from build_engines.build import export
from build_engines.errors import BuildError
from build_engines.families import bert_graph
from build_engines.model_folder.spec import ModelSpec
from build_engines.request import Request
from tests.build_engines.models import session
from tests.clients.text_models import save_tokenizer
from tests.support.harness import PATIENCE, ROOT

pytestmark = pytest.mark.full

Array = NDArray[Any]
Arrays = dict[str, Array]
SMALL: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
    "initializer_range": 0.3,
}
MODELS = {
    "embedding": transformers.BertModel,
    "fill-mask": transformers.BertForMaskedLM,
    "text-classification": transformers.BertForSequenceClassification,
}


def random_model(task: str, **changes: Any) -> Any:
    """Return a small transformers model for that task; biases and norms are random too."""
    torch.manual_seed(0)
    model = MODELS[task](transformers.BertConfig(**SMALL, num_labels=3, **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.normal_(0.5, 0.3)
    return model


def build_checkpoint(checkpoint: Path, task: str, folder: Path) -> ModelSpec:
    """Write the files that Triton needs, without the configuration; the checkpoint gets a tokenizer."""
    save_tokenizer(checkpoint, "pieces")
    return export(Request("own", client="bert", task=task), checkpoint, folder)


def batch(length: int = 11) -> Arrays:
    """Return three rows of different lengths, at least 3 tokens, and both token types."""
    rng = np.random.default_rng(0)
    mask = (np.arange(length) < np.array([[length], [length - 2], [2]])).astype(np.int64)
    types = np.tile(np.arange(length) > 4, (3, 1)).astype(np.int64)
    ids = rng.integers(5, SMALL["vocab_size"], (3, length))
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": types}


def run_onnx(folder: Path, inputs: Arrays) -> Array:
    running = session(folder / "1/model.onnx")
    names = [value.name for value in running.get_inputs()]
    every = np.tile(np.arange(inputs["input_ids"].shape[1]), (len(inputs["input_ids"]), 1))
    return np.asarray(running.run(None, {n: (inputs | {bert_graph.POSITIONS: every})[n] for n in names})[0])


def run_torch(model: Any, inputs: Arrays) -> Array:
    with torch.no_grad():
        outputs = model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    return np.asarray((outputs["logits"] if "logits" in outputs else outputs["last_hidden_state"]).numpy())


def difference(ours: Array, theirs: Array, inputs: Arrays) -> float:
    """Return the largest difference, padding aside."""
    assert ours.shape == theirs.shape
    if ours.ndim == 3:
        ours, theirs = ours[inputs["attention_mask"] > 0], theirs[inputs["attention_mask"] > 0]
    return float(np.abs(ours - theirs).max())


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("task", MODELS)
def test_the_graph_answers_as_transformers_does(task: str, activation: str, tmp_path: Path) -> None:
    model = random_model(task, hidden_act=activation)
    model.save_pretrained(tmp_path / "checkpoint")
    build_checkpoint(tmp_path / "checkpoint", task, tmp_path / "model")
    for length in (3, 11, 24):
        inputs = batch(length)
        assert difference(run_onnx(tmp_path / "model", inputs), run_torch(model, inputs), inputs) < 1e-4


def test_weights_are_stored_once(tmp_path: Path) -> None:
    model = random_model("fill-mask")
    model.save_pretrained(tmp_path / "checkpoint")
    build_checkpoint(tmp_path / "checkpoint", "fill-mask", tmp_path)
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    spare = 4 * SMALL["vocab_size"] * SMALL["hidden_size"]
    stored = onnx.load(tmp_path / "1" / "model.onnx").graph.initializer
    assert 0 <= sum(len(tensor.raw_data) for tensor in stored) - weights < spare / 4


def test_a_decoder_of_its_own_is_honoured(tmp_path: Path) -> None:
    model = random_model("fill-mask", tie_word_embeddings=False)
    with torch.no_grad():
        model.cls.predictions.decoder.weight.normal_()
    model.save_pretrained(tmp_path / "checkpoint")
    build_checkpoint(tmp_path / "checkpoint", "fill-mask", tmp_path)
    inputs = batch()
    assert difference(run_onnx(tmp_path, inputs), run_torch(model, inputs), inputs) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_old_names_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    model = random_model("text-classification").to(dtype)
    model.save_pretrained(tmp_path / "checkpoint", max_shard_size="20KB")
    for file in (tmp_path / "checkpoint").glob("*.safetensors"):
        old = {k.replace("Norm.weight", "Norm.gamma"): v for k, v in load_file(file).items()}
        save_file({k.replace("Norm.bias", "Norm.beta"): v for k, v in old.items()}, file)
    build_checkpoint(tmp_path / "checkpoint", "text-classification", tmp_path)
    inputs = batch()
    assert len(list((tmp_path / "checkpoint").glob("*.safetensors"))) > 1
    assert difference(run_onnx(tmp_path, inputs), run_torch(model.float(), inputs), inputs) < 1e-4


@pytest.mark.parametrize("name", ["bert", "efficientnet", "yolov4_tiny"])
def test_building_a_bundled_model_imports_neither_torch_nor_transformers(name: str, tmp_path: Path) -> None:
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
    files = [f"{path.relative_to(committed)}" for path in committed.rglob("*") if path.is_file()]
    files.remove("build.json")  # of the build that made the folder, which may be an older one
    assert {"1/model.onnx", "config.pbtxt", "configs/cpu.pbtxt"} <= set(files)
    assert filecmp.cmpfiles(committed, built, files, shallow=False)[1:] == ([], [])


@pytest.mark.parametrize(
    ("task", "change", "named"),
    [
        ("fill-mask", {}, r"cls\.predictions"),
        ("embedding", {"model_type": "no-such"}, "embedding"),
        ("embedding", {"num_hidden_layers": 1}, r"encoder\.layer\.1\."),  # weights that the graph does not use
        ("translation", {}, "embedding, fill-mask, text-classification"),
    ],
)
def test_another_checkpoint_or_task_is_refused(task: str, change: dict[str, Any], named: str, tmp_path: Path) -> None:
    random_model("embedding").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(BuildError, match=named):
        build_checkpoint(tmp_path, task, tmp_path / "model")


def test_a_checkpoint_without_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BuildError, match="save_pretrained"):
        build_checkpoint(tmp_path, "embedding", tmp_path / "model")


@pytest.mark.parametrize(
    ("files", "settings"),
    [
        ({}, {}),
        ({"1_Pooling/config.json": {"pooling_mode_cls_token": True}}, {}),  # the network's
        ({"1_Pooling/config.json": {"pooling_mode_mean_tokens": True}, "modules.json": []}, {"normalize": "false"}),
        ({"modules.json": [{"type": "sentence_transformers.models.Normalize"}]}, {}),
    ],
)
def test_what_follows_a_sentence_encoders_pooling_is_the_clients(
    files: dict[str, Any], settings: dict[str, str], tmp_path: Path
) -> None:
    random_model("embedding").save_pretrained(tmp_path / "checkpoint")
    for name, content in files.items():
        (tmp_path / "checkpoint" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "checkpoint" / name).write_text(json.dumps(content))
    draft = build_checkpoint(tmp_path / "checkpoint", "", tmp_path / "model")
    assert draft.settings == {"pad_to_multiple_of": "8", "task": "embedding"} | settings
