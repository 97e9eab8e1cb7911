"""The header of an ONNX file is what the package onnx reads of it, and a part of a file is told from a whole one."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from serving.repository.onnx_header import DATATYPES, Damaged, Port, read_header
from tests.build_engines.models import save, save_classifier, save_scale
from tests.support.harness import ROOT, make_identity

BUNDLED = sorted((ROOT / "model_repository").glob("*/1/model.onnx"))


def ports(values: Any) -> dict[str, Port]:
    """As the package has them."""
    found = {}
    for value in values:
        tensor = value.type.tensor_type
        shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
        name = TensorProto.DataType.Name(tensor.elem_type)
        found[value.name] = Port(value.name, NAMES.get(name, name), shape)
    return found


NAMES = {"FLOAT": "FP32", "DOUBLE": "FP64", "FLOAT16": "FP16", "BFLOAT16": "BF16", "STRING": "BYTES"}


def same(file: Path) -> None:
    model, header = onnx.load(file, load_external_data=False), read_header(file)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = ports(model.graph.input)
    assert header.ir_version == model.ir_version
    assert header.opsets == {each.domain: each.version for each in model.opset_import}
    assert header.inputs == {name: port for name, port in inputs.items() if name not in weights}
    assert header.optional == {name: port for name, port in inputs.items() if name in weights}
    assert header.outputs == ports(model.graph.output)


@pytest.mark.parametrize("file", BUNDLED, ids=lambda file: file.parts[-3])
def test_of_the_bundled_models(file: Path) -> None:
    same(file)


def test_of_all_datatypes_and_shapes(tmp_path: Path) -> None:
    make_identity(tmp_path)
    same(tmp_path / "identity/1/model.onnx")
    same(save_classifier(tmp_path / "c.onnx"))
    scalar = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [])
    same(save(helper.make_graph([helper.make_node("Identity", ["x"], ["x2"])], "g", [scalar], []), tmp_path / "s.onnx"))
    assert set(DATATYPES.values()) >= set(NAMES.values())


def test_of_weights_that_are_inputs_too(tmp_path: Path) -> None:
    file = save_scale(tmp_path / "scale.onnx")
    model = onnx.load(file)
    model.graph.input.append(helper.make_tensor_value_info("two", TensorProto.FLOAT, [1]))
    onnx.save(model, file)
    same(file)
    assert set(read_header(file).optional) == {"two"}


def test_weights_in_other_files_are_named_with_their_sizes(tmp_path: Path) -> None:
    header = read_header(save_scale(tmp_path / "scale.onnx", external=True))
    assert header.external == {"weights.bin": (tmp_path / "weights.bin").stat().st_size}


def test_every_part_of_a_file_is_damaged(tmp_path: Path) -> None:
    data = save_scale(tmp_path / "scale.onnx").read_bytes()
    opsets = len(onnx.load(tmp_path / "scale.onnx").opset_import[0].SerializeToString()) + 2
    for length in range(len(data) - opsets):
        (tmp_path / "part.onnx").write_bytes(data[:length])
        with pytest.raises(Damaged):
            read_header(tmp_path / "part.onnx")


@pytest.mark.parametrize(
    "data", [b"\x3a", b"\x3a\x05", b"\xff" * 40, b"PK\x03\x04" + b"\0" * 40, b"\x3a\x04\x5a\x02\x0a\x09"]
)
def test_what_is_no_onnx_file_is_told(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(data)
    with pytest.raises(Damaged, match="no ONNX file"):
        read_header(tmp_path / "net.onnx")
