"""Tests that a setting can only name a file in the model's folder."""

import shutil
from pathlib import Path

import pytest

from clients.base import Model, TensorSpec
from serving.clients import client_class
from serving.errors import InvalidRequest
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

IMAGE = (TensorSpec("x", "FP32", (3, 8, 8)),)
ROW = (TensorSpec("x", "FP32", (10,)),)
TOKENS = tuple(TensorSpec(name, "INT64", (-1,)) for name in ("input_ids", "attention_mask"))
CLASSES = (TensorSpec("logits", "FP32", (10,)),)
TASK = {"task": "text-classification"}


@pytest.mark.parametrize("name", ["/{tmp}/secret", "../secret"])
@pytest.mark.parametrize(
    ("client", "inputs", "others", "setting"),
    [
        ("image_classification", IMAGE, {}, "labels"),
        ("table", ROW, {}, "labels"),
        ("table", ROW, {}, "columns"),
        ("text", TOKENS, TASK, "labels"),
        ("text", TOKENS, TASK, "tokenizer"),
    ],
)
def test_refuse_files_of_other_folders(
    client: str,
    inputs: tuple[TensorSpec, ...],
    others: dict[str, str],
    setting: str,
    name: str,
    tmp_path: Path,
) -> None:
    shutil.copytree(ROOT / "model_repository/bert/tokenizer", tmp_path / "model/tokenizer")
    make, settings = client_class(client), others | {setting: name.format(tmp=tmp_path)}
    with pytest.raises(InvalidRequest, match="secret"):
        make(Model("mine", tmp_path / "model", inputs, CLASSES, 8, settings))
