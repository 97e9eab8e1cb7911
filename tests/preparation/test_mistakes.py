"""Mistakes that people make with their models: each is told in one line by `serve --check`, and ends a start before
anything runs where it can be seen without the model's client."""

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from serving.host.tritonserver import backend_directory
from serving.preparation.survey import survey
from serving.settings.table import Settings
from tests.preparation.test_check import CONFIG, change, findings
from tests.support.harness import ROOT, link_model, make_scale

Change = Callable[[Path], Any]
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
MODEL = "2/model.onnx"


@pytest.fixture
def scale(tmp_path: Path) -> Path:
    """The folder of `scale`, in a repository of its own: FP32 x [batch, n] -> y."""
    make_scale(tmp_path)
    return tmp_path / "scale"


def says(old: str, new: str) -> Change:
    return lambda folder: change(folder / CONFIG, old, new)


def holds(data: bytes, file: str = MODEL) -> Change:
    return lambda folder: (folder / file).write_bytes(data)


def cut(folder: Path) -> None:
    data = (folder / MODEL).read_bytes()
    (folder / MODEL).write_bytes(data[: len(data) // 2])


def saved(**fields: Any) -> Change:
    def save(folder: Path) -> None:
        model = onnx.load(folder / MODEL)
        model.ir_version = fields.get("ir", model.ir_version)
        model.opset_import[0].version = fields.get("opset", model.opset_import[0].version)
        onnx.save(model, folder / MODEL)

    return save


def renamed(folder: Path) -> None:
    (folder / CONFIG).rename(folder / "config.yaml")


def shaped(*shape: Any) -> Change:
    """The file's x has this shape."""

    def save(folder: Path) -> None:
        model = onnx.load(folder / MODEL)
        model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))
        onnx.save(model, folder / MODEL)

    return save


def of_maps(folder: Path) -> None:
    """As skl2onnx makes a classifier's probabilities by default."""
    model = onnx.load(folder / MODEL)
    maps = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    model.graph.output[0].CopyFrom(helper.make_value_info("y", helper.make_sequence_type_proto(maps)))
    onnx.save(model, folder / MODEL)


def elsewhere(length: int | None) -> Change:
    """The weights in another file of that many bytes, or in none."""

    def save(folder: Path) -> None:
        model = onnx.load(folder / MODEL)
        weights = model.graph.initializer[0]
        weights.raw_data = b"\0\0\0\0"
        weights.ClearField("float_data")
        onnx.external_data_helper.set_external_data(weights, "weights.bin", offset=0, length=4)
        weights.ClearField("raw_data")
        onnx.save(model, folder / MODEL)
        if length is not None:
            (folder / "2/weights.bin").write_bytes(bytes(length))

    return save


def torchscript(*names: str) -> Change:
    """A model of PyTorch whose archive has these entries."""

    def save(folder: Path) -> None:
        change(folder / CONFIG, "onnxruntime_onnx", "pytorch_libtorch")
        for version in ("1", "2"):
            with zipfile.ZipFile(folder / version / "model.pt", "w") as archive:
                for name in names:
                    archive.writestr(f"net/{name}", b"")
            if not names:
                (folder / version / "model.pt").write_bytes(b"half of an archive")

    return save


MISTAKES: dict[str, tuple[Change, str]] = {
    "dims of an input": (
        says('"x" data_type: TYPE_FP32 dims: [-1]', '"x" data_type: TYPE_FP32 dims: [3, 4]'),
        "config.pbtxt: input 'x' has the dims [3, 4], and the file's is [-1, -1]; say dims: [-1]",
    ),
    "name of an input": (
        says('name: "x"', 'name: "xs"'),
        "config.pbtxt: the file has the input 'x' and it has not; add input { name: \"x\" data_type: TYPE_FP32 dims: [",
    ),
    "name of an output": (says('name: "y"', 'name: "z"'), "config.pbtxt: the file has no output 'z'; it has y"),
    "nearly the name": (says('name: "y"', 'name: "y_"'), "the file has no output 'y_'; it has y"),
    "datatype": (
        says('"x" data_type: TYPE_FP32', '"x" data_type: TYPE_FP64'),
        "input 'x' is FP64, and the file's is FP32; say data_type: TYPE_FP32",
    ),
    "a batch size of a file that takes one": (
        shaped(1, 4),
        "max_batch_size is 8, and the file's 'x' is [1, 4]; say max_batch_size: 0 and whole dims, or export it with",
    ),
    "no batch size": (
        says("max_batch_size: 8", ""),
        "its dims are without the first dimension of the file's [-1, -1]; say max_batch_size: 8",
    ),
    "a fixed dimension": (
        lambda folder: (shaped("n", 4)(folder), says("dims: [-1] }\noutput", "dims: [3] }\noutput")(folder)),
        "input 'x' has the dims [3], and the file's is [-1, 4]; say dims: [4]",
    ),
    "an empty file": (holds(b""), "scale: 2/model.onnx: it is empty; copy it again, whole"),
    "half a file": (cut, "scale: 2/model.onnx: it is cut short, or no ONNX file: "),
    "a pointer of Git LFS": (holds(LFS.encode()), "2/model.onnx: it is a pointer of Git LFS and not the file; git"),
    "a web page": (holds(b"<!DOCTYPE html><html>not found"), "it is a web page; download the file itself"),
    "another file": (holds(b"not onnx"), "scale: 2/model.onnx: it is no ONNX file; copy it again, whole"),
    "an opset too new": (
        saved(opset=99),
        "scale: 2/model.onnx: its opset is 99, and ONNX Runtime here takes 26 at most; export it with an older one",
    ),
    "an IR too new": (saved(ir=99), "2/model.onnx: its IR version is 99, and ONNX Runtime here takes 13 at most"),
    "weights beside it that are not there": (elsewhere(None), "its weights are in weights.bin, which is not there;"),
    "weights beside it that are cut short": (elsewhere(1), "its weights are in weights.bin, which lacks 3 bytes"),
    "a classifier's maps": (of_maps, "the file's output 'y' is a sequence, which Triton has not; convert it with"),
    "a platform that there is not": (
        says("onnxruntime_onnx", "onnx"),
        'config.pbtxt: there is no platform "onnx"; say platform: "onnxruntime_onnx"',
    ),
    "a backend as a platform": (says("onnxruntime_onnx", "python"), 'no platform "python"; say backend: "python"'),
    "a backend that is misspelt": (
        says('platform: "onnxruntime_onnx"', 'backend: "onnx"'),
        "there is no backend 'onnx' in ",
    ),
    "a configuration as YAML": (renamed, "scale: config.yaml: Triton does not read it; write a config.pbtxt"),
    "an empty configuration": (holds(b"\n", CONFIG), "scale: config.pbtxt: it is empty; write what it is to"),
    "a checkpoint for TorchScript": (torchscript("data.pkl"), "it is a checkpoint of torch.save and no TorchScript;"),
    "another archive": (torchscript("readme"), "1/model.pt: it is another archive and no TorchScript; write it with"),
    "half an archive": (torchscript(), "1/model.pt: it is no TorchScript archive (a zip), or cut short; write it with"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_by_the_check_and_by_a_start(name: str, scale: Path) -> None:
    make, told = MISTAKES[name]
    make(scale)
    lines = findings(scale.parent, "scale")
    assert [line for line in lines if told in line], lines
    settings = Settings.from_env({"SERVE_MODEL_REPOSITORY": str(scale.parent), "SERVE_DEVICE": "cpu"})
    assert set(survey(settings, backend_directory()).hopeless) == set(lines)


def test_what_only_onnx_runtime_can_tell_is_told_by_the_check_alone(scale: Path) -> None:
    model = onnx.load(scale / MODEL)
    model.graph.node[0].op_type = "Multiply"
    onnx.save(model, scale / MODEL)
    (line,) = findings(scale.parent, "scale")
    assert line.startswith("scale: 2/model.onnx: ONNX Runtime cannot load it: ") and "Multiply" in line


def test_a_library_that_is_missing_is_told_with_what_to_install(scale: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchscript("constants.pkl")(scale)
    assert findings(scale.parent, "scale") == []
    monkeypatch.setitem(sys.modules, "torch", None)
    (line,) = findings(scale.parent, "scale")
    assert "the backend 'pytorch' needs torch, which is not installed here; pip install torch (a CPU build is" in line


@pytest.mark.parametrize("name", ["means", "interpolaton", "top_kk"])
def test_a_misspelt_setting_of_a_client_is_told(name: str, tmp_path: Path) -> None:
    link_model(ROOT / "model_repository/resnet", tmp_path)
    for file in (CONFIG, "configs/cpu.pbtxt"):
        change(tmp_path / "resnet" / file, "parameters {", f'parameters {{ key: "{name}" value {{ }} }}\nparameters {{')
    lines = findings(tmp_path, "resnet")
    assert len(lines) == 2
    assert f"config.pbtxt has the parameter '{name}'; did you mean '" in lines[0]


def test_options_of_tritonserver_that_load_other_models_leave_it_to_triton(scale: Path) -> None:
    holds(b"")(scale)
    variables = {
        "SERVE_MODEL_REPOSITORY": str(scale.parent),
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--model-control-mode=poll",
    }
    assert survey(Settings.from_env(variables), backend_directory()).hopeless == ()
