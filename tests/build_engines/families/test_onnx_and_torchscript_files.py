# mypy: allow-subclassing-any
"""Tests that a user's own ONNX and TorchScript files determine the configuration for Triton."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image

from build_engines.errors import BuildError, UsageError
from build_engines.families.own_torchscript import parse_inputs
from build_engines.onnx_reader import DATATYPES
from build_engines.runners import runner_of
from build_engines.stored_model import StoredModel
from clients.base import TensorSpec
from serving.triton.tensors import numpy_dtype
from tests.build_engines.models import (
    build_own,
    save,
    save_classifier,
    save_constants,
    save_detector,
    save_ports,
    save_scale,
    session,
)
from tests.support.harness import ROOT, parsed

pytestmark = pytest.mark.full


def test_batch_along_a_free_first_dimension(tmp_path: Path) -> None:
    stored = build_own(tmp_path, save_scale(tmp_path / "scale.onnx"))
    assert stored.model.max_batch_size == 8
    assert stored.model.inputs == (TensorSpec("x", "FP32", (4,)),)
    assert stored.config.HasField("dynamic_batching")
    assert stored.client() is None
    assert runner_of(stored)({"x": np.ones((2, 4), np.float32)})["y"].tolist() == [[2.0] * 4] * 2


@pytest.mark.parametrize(("shape", "dims"), [("1, 4", (1, 4)), ("3, n", (3, -1)), ("2", (2,))])
def test_do_not_batch_along_a_fixed_first_dimension(
    shape: str, dims: tuple[int, ...], tmp_path: Path
) -> None:
    stored = build_own(tmp_path, save_scale(tmp_path / "scale.onnx", f"float[{shape}]"))
    assert stored.model.max_batch_size == 0
    assert stored.model.inputs == (TensorSpec("x", "FP32", dims),)
    assert not stored.config.HasField("dynamic_batching")


def test_take_the_batch_size_from_the_flag(tmp_path: Path) -> None:
    file = save_scale(tmp_path / "scale.onnx")
    assert build_own(tmp_path, file, max_batch_size=64).model.max_batch_size == 64
    assert build_own(tmp_path, file, max_batch_size=0).model.inputs == (
        TensorSpec("x", "FP32", (-1, 4)),
    )
    with pytest.raises(UsageError, match="--max-batch-size 2"):
        build_own(tmp_path, save_scale(tmp_path / "fixed.onnx", "float[1, 4]"), max_batch_size=2)


@pytest.mark.parametrize("kind", DATATYPES)
def test_write_every_datatype_in_triton_s_spelling(kind: int, tmp_path: Path) -> None:
    tensor = f"{TensorProto.DataType.Name(kind).lower()}[n, 4]"
    graph = parsed(f"same ({tensor} x) => ({tensor} y) {{ y = Identity (x) }}").graph
    stored = build_own(tmp_path, save(graph, tmp_path / "same.onnx"))
    assert stored.model.inputs[0].datatype == DATATYPES[kind]
    if DATATYPES[kind] != "BF16":
        assert helper.tensor_dtype_to_np_dtype(kind) == numpy_dtype(DATATYPES[kind])


def test_copy_weights_that_are_beside_the_file(tmp_path: Path) -> None:
    stored = build_own(tmp_path, save_scale(tmp_path / "source/scale.onnx", external=True))
    assert sorted(path.name for path in stored.version.iterdir()) == ["model.onnx", "weights.bin"]
    assert runner_of(stored)({"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[2.0] * 4]


def test_refuse_weights_that_are_missing_or_elsewhere(tmp_path: Path) -> None:
    file = save_scale(tmp_path / "source/scale.onnx", external=True)
    (tmp_path / "source/weights.bin").rename(tmp_path / "weights.bin")
    with pytest.raises(BuildError, match=r"weights\.bin"):
        build_own(tmp_path, file)
    model = onnx.load(file, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "../weights.bin"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(BuildError, match=r"\.\./weights\.bin"):
        build_own(tmp_path, file)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x08\x08"])
def test_refuse_a_file_that_is_not_onnx(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    with pytest.raises(BuildError, match=r"bad\.onnx"):
        build_own(tmp_path, tmp_path / "bad.onnx")
    assert not (tmp_path / "models").exists()


def test_set_client_labels_and_settings_by_flags(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("cat\ndog \n\nfo\u2028x\n")
    own = {"mean": "0", "std": "1"}
    file, labels = save_classifier(tmp_path / "c.onnx"), tmp_path / "names"
    stored = build_own(tmp_path, file, client="resnet", labels=labels, settings=own)
    client = stored.client()
    assert client
    assert client.labels == ["cat", "dog", "fo\u2028x"]  # type: ignore[attr-defined]
    assert (client.options["mean"], client.options["std"]) == ((0.0,), (1.0,))
    assert stored.config.output[0].label_filename == "labels.txt"


def test_give_a_classifier_the_labels_of_its_file(tmp_path: Path) -> None:
    """Ultralytics' exporter writes `names` into the files of classifiers too."""
    file = save_classifier(tmp_path / "c.onnx")
    model = onnx.load(file)
    model.metadata_props.add(key="names", value="{0: 'cat', 1: 'dog', 2: 'cow'}")
    onnx.save(model, file)
    stored = build_own(tmp_path, file, client="resnet")
    assert stored.client().labels == ["cat", "dog", "cow"]  # type: ignore[union-attr]
    assert stored.config.output[0].label_filename == "labels.txt"


@pytest.mark.parametrize(
    ("client", "channels", "example"),
    [
        ("resnet", 3, "efficientnet/example.jpg"),
        ("resnet", 1, "resnet/example.png"),
        ("yolov5", 3, "yolov4_tiny/example.jpg"),
    ],
)
def test_use_a_photo_as_example_unless_the_network_takes_grey(
    client: str, channels: int, example: str, tmp_path: Path
) -> None:
    answer = {"output0": np.full((3,) if client == "resnet" else (300, 6), 1000)}
    file = save_constants(tmp_path / "net.onnx", answer)
    model = onnx.load(file)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = channels
    onnx.save(model, file)
    grey = {"mean": "0", "std": "1"} if channels == 1 else {}
    folder = build_own(tmp_path, file, client=client, settings=grey).folder
    (copied,) = folder.glob("example.*")
    assert copied.read_bytes() == (ROOT / "model_repository" / example).read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client": "yolov5"}, "boxes"),
        ({"client": "resnet", "settings": {"mean": "x"}}, "'mean'"),
        ({"client": "resnet", "settings": {"means": "1"}}, "'mean'"),
        ({"settings": {"means": "1"}}, "--client"),
        ({"settings": {"TARGET_DEVICE": "GPU"}}, "this backend runs on the processor"),
        ({"client": "resnet", "labels": Path(__file__)}, "cannot be made: model .*--labels"),
        ({"client": "nobody"}, "nobody.* image_classification"),
        ({"client": "bert"}, "tokenizer"),
        ({"client": "resnet", "size": 320}, "--size 320"),
        ({"size": 320}, "--size 320"),
    ],
)
def test_refuse_to_build_what_cannot_be_served(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=message):
        build_own(tmp_path, save_classifier(tmp_path / "c.onnx"), **options)
    assert not (tmp_path / "models").exists() or list((tmp_path / "models").iterdir()) == []


COCO = str({number: f"class {number}" for number in range(80)})
HEADS: list[tuple[dict[str, tuple[int, ...]], str, str]] = [
    ({"output0": (116, 8400)}, COCO, "mask"),
    ({"output0": (25200, 117)}, "", "mask"),
    ({"output0": (56, 8400)}, "{0: 'person'}", "keypoints"),
    ({"output0": (300, 38)}, COCO, "NMS"),
    ({"output0": (300, 57)}, "{0: 'person'}", "keypoints=17,3"),
    ({"output0": (20, 21504)}, str(dict.fromkeys(range(15), "a")), "box"),
    ({"output0": (300, 7)}, COCO, r"oriented box \(obb\).*build it without --client"),
    ({"logits": (100, 92), "pred_boxes": (100, 4)}, "", "DETR"),
    ({"output0": (21, 512, 512)}, "", "512"),
]


def build_ports(tmp_path: Path, outputs: Any, **metadata: str) -> StoredModel:
    file = save_ports(tmp_path / "net.onnx", outputs, **metadata)
    return build_own(tmp_path, file, client="yolov5")


@pytest.mark.parametrize(("outputs", "names", "message"), HEADS)
def test_report_a_head_that_no_client_reads(
    outputs: dict[str, Any], names: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=message):
        build_ports(tmp_path, outputs, names=names)


@pytest.mark.parametrize(
    ("outputs", "names", "classes"),
    [
        ({"output0": (84, 8400)}, COCO, 80),
        ({"output0": (25200, 85), "a": (3, 80, 80, 85), "b": (3, 40, 40, 85)}, COCO, 80),
        ({"output0": (25200, 6)}, "{0: 'one'}", 1),
        ({"output0": (84, 84)}, COCO, 80),  # the output for images of 64 pixels
        ({"output0": (63, 85)}, COCO, 80),
        ({"output0": (605, 525)}, str({number: str(number) for number in range(601)}), 601),
        ({"output0": (116, 8400), "output1": (32, 160, 160)}, COCO, 80),
        ({"output0": (25200, 117), "output1": (32, 160, 160)}, COCO, 80),
        ({"output0": (300, 6)}, COCO, 80),
        ({"output0": (300, 38), "output1": (32, 160, 160)}, COCO, 80),
    ],
)
def test_read_the_labels_of_a_head_from_its_file(
    outputs: dict[str, Any], names: str, classes: int, tmp_path: Path
) -> None:
    client = build_ports(tmp_path, outputs, names=names).client()
    assert len(client.labels) == (classes if names else 0)  # type: ignore[union-attr]


def test_name_a_layout_that_the_labels_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"79 classes if its layout is yolov5.*--set layout="):
        build_ports(tmp_path, {"output0": (84, 84)}, names="{0: 'one'}")


def test_ask_for_another_export_of_a_detector_with_a_fixed_batch(tmp_path: Path) -> None:
    file = save_ports(tmp_path / "net.onnx", {"output0": (84, 8400)}, names=COCO)
    model = onnx.load(file)
    for port in (model.graph.input[0], model.graph.output[0]):
        port.type.tensor_type.shape.dim[0].dim_value = 4
    onnx.save(model, file)
    with pytest.raises(BuildError, match="the batch is fixed at 4: export with batch=1 or dynamic"):
        build_own(tmp_path, file, client="yolov5")


@pytest.mark.parametrize("shape", [(3549, 6), (84, 8400)])
@pytest.mark.parametrize(("largest", "is_built"), [(1.0, False), (8.0, False), (60000.0, True)])
def test_refuse_boxes_not_in_pixels(
    shape: tuple[int, int], largest: float, is_built: bool, tmp_path: Path
) -> None:
    values = np.linspace(0, largest, shape[0] * shape[1]).reshape(shape)
    file = save_constants(tmp_path / "net.onnx", {"output0": values})
    if is_built:
        assert build_own(tmp_path, file, client="yolov5").client()
    else:
        with pytest.raises(BuildError, match="pixels"):
            build_own(tmp_path, file, client="yolov5")


def test_read_the_keypoints_of_a_pose_file(tmp_path: Path) -> None:
    metadata = {"names": "{0: 'person'}", "kpt_shape": "[17, 3]"}
    client = build_ports(tmp_path, {"output0": (56, 8400)}, **metadata).client()
    assert (client.options["keypoints"], client.labels) == ((17, 3), ["person"])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("metadata", "options", "side"),
    [
        ({}, {}, 640),
        ({"imgsz": "[320, 320]"}, {}, 320),
        ({"imgsz": "[320, 320]"}, {"size": 416}, 416),
        ({}, {"size": 320}, 320),
        ({"imgsz": "['x']"}, {}, 640),
    ],
)
def test_take_a_detector_s_size_from_its_file_or_the_flag(
    metadata: dict[str, str], options: dict[str, int], side: int, tmp_path: Path
) -> None:
    answer = {"output0": np.zeros((25200, 85))}
    file = save_constants(tmp_path / "d.onnx", answer, "side", **metadata)
    client = build_own(tmp_path, file, client="yolov5", **options).client()
    assert client
    pixels = np.asarray(picture().resize((800, 800)))
    (images,) = client.prepare([pixels], {}).values()
    assert images.shape[-2:] == (side, side)


def test_accept_the_size_that_a_file_has(tmp_path: Path) -> None:
    assert build_own(tmp_path, save_classifier(tmp_path / "c.onnx"), client="resnet", size=16)


def save_with_ending(path: Path, ending: str) -> Path:
    """Write the classifier with these operators after its logits. The last tensor is called
    scores."""
    head = f"logits = MatMul (e, m) as_is = Constant <value_ints = [0, -1]> () {ending}"
    return save_classifier(path, head=head, outputs="float[batch, 3] scores")


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8))


def scores_of(stored: StoredModel) -> dict[int, float]:
    client = stored.client()
    assert client
    inputs = client.prepare([picture()], {})
    (prediction,) = client.postprocess(
        runner_of(stored)(inputs), inputs, [picture()], client.read_parameters({})
    )
    return {each["class_id"]: each["score"] for each in prediction["classes"]}


@pytest.mark.parametrize("function", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    "ending",
    [
        "scores = {} (logits)",
        "f = {} (logits) scores = Identity (f)",
        "f = {} (logits) scores = Reshape (f, as_is)",
        "f = {} (logits) g = Identity (f) h = Reshape (g, as_is) scores = Flatten (h)",
    ],
)
def test_keep_the_scores_of_the_file(function: str, ending: str, tmp_path: Path) -> None:
    file = save_with_ending(tmp_path / "c.onnx", ending.format(function.capitalize()))
    stored = build_own(tmp_path, file, client="resnet")
    client = stored.client()
    assert client
    network = session(save_classifier(tmp_path / "logits.onnx"))
    logits = torch.from_numpy(network.run(["logits"], client.prepare([picture()], {}))[0][0])
    wanted = getattr(torch, function)(logits, **({"dim": 0} if function == "softmax" else {}))
    assert scores_of(stored) == pytest.approx(dict(enumerate(wanted.tolist())), abs=1e-6)


def test_recognize_powers_divided_by_their_sum_as_softmax(tmp_path: Path) -> None:
    ending = """powers = Exp (logits) one = Constant <value_ints = [1]> ()
        sum = ReduceSum (powers, one) scores = Div (powers, sum)"""
    file = save_with_ending(tmp_path / "c.onnx", ending)
    assert sum(scores_of(build_own(tmp_path, file, client="resnet")).values()) == pytest.approx(1)
    assert build_own(tmp_path, file, client="resnet").model.parameters["activation"] == "none"


@pytest.mark.parametrize("operator", ["Softmax", "Sigmoid"])
def test_refuse_scores_of_boxes_where_the_client_reads_logits(
    operator: str, tmp_path: Path
) -> None:
    shapes = {"pred_boxes": (5, 4), "logits": (5, 4)}
    nodes = """flat = Flatten (images)
        first = Constant <value_ints = [0]> () last = Constant <value_ints = [20]> ()
        axes = Constant <value_ints = [1]> () cells = Slice (flat, first, last, axes)
        shape = Constant <value_ints = [-1, 5, 4]> () rows = Reshape (cells, shape)
        pred_boxes = Sigmoid (rows) logits = {} (rows)"""
    file = save_detector(tmp_path / "logits.onnx", shapes, nodes.format("Identity"), 64)
    assert build_own(tmp_path, file, client="detr").client()
    file = save_detector(tmp_path / "scores.onnx", shapes, nodes.format(operator), 64)
    with pytest.raises(BuildError, match="'logits' comes from a softmax or a sigmoid"):
        build_own(tmp_path, file, client="detr")


@pytest.mark.parametrize("end", ["Softmax", "Sigmoid"])
@pytest.mark.parametrize("named", ["sigmoid", "none"])
def test_apply_the_activation_that_is_named(end: str, named: str, tmp_path: Path) -> None:
    file = save_with_ending(tmp_path / "c.onnx", f"scores = {end} (logits)")
    stored = build_own(tmp_path, file, client="resnet", settings={"activation": named})
    assert stored.model.parameters["activation"] == named


def save_two_outputs(path: Path, second: str = "logits") -> Path:
    """Write the classifier with its eight features as a first output. They are larger than all of
    its scores."""
    head = f"""{second} = MatMul (e, m) much = Constant <value = float {{100.0}}> ()
        features = Add (e, much)"""
    outputs = f"float[batch, 8] features, float[batch, 3] {second}"
    return save_classifier(path, head=head, outputs=outputs)


@pytest.mark.parametrize(
    ("second", "labels"), [("logits", ""), ("probabilities", ""), ("y", "cat\ndog\nfox\n")]
)
def test_read_the_output_that_has_the_classes(second: str, labels: str, tmp_path: Path) -> None:
    file = save_two_outputs(tmp_path / "two.onnx", second)
    (tmp_path / "names").write_text(labels)
    stored = build_own(
        tmp_path, file, client="resnet", **({"labels": tmp_path / "names"} if labels else {})
    )
    assert scores_of(stored) == scores_of(
        build_own(tmp_path, save_classifier(tmp_path / "c.onnx"), client="resnet")
    )


def test_refuse_two_outputs_that_could_both_be_scores(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="--labels"):
        build_own(tmp_path, save_two_outputs(tmp_path / "two.onnx", "y"), client="resnet")


@pytest.mark.parametrize(
    ("text", "is_batch"),
    [
        ("float[n, 2] x) => (float[n, 2] y) { y = Relu (x)", True),
        ("float[batch, samples] x) => (float[time, batch] y) { y = Transpose (x)", False),
        (
            "float[time, 2] x) => (float[time, 2] y) { zero = Constant <value = int64 {0}> "
            "() y = CumSum (x, zero)",
            False,
        ),
        (
            "int64[time, 2] x) => (int64[time, 2] y) { zero = Constant <value = int64 {0}> "
            "() y = CumSum (x, zero)",
            False,
        ),
        (
            "float[a, 4] x) => (float[b, 4] y) { two = Constant <value = int64[2] {2, 1}> "
            "() y = Tile (x, two)",
            False,
        ),
    ],
)
def test_do_not_batch_along_a_dimension_that_is_not_a_batch(
    text: str, is_batch: bool, tmp_path: Path
) -> None:
    file = save(parsed(f"net ({text} }}").graph, tmp_path / "net.onnx")
    assert build_own(tmp_path, file).model.max_batch_size == (8 if is_batch else 0)
    if not is_batch:
        with pytest.raises(UsageError, match="--max-batch-size"):
            build_own(tmp_path, file, max_batch_size=4)


class Twice(torch.nn.Module):
    """A module that maps [batch, n] and [batch, 3] to [batch, n] and [batch]."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 2 * x, y.sum(1)


def script(path: Path) -> Path:
    torch.jit.script(Twice()).save(str(path))
    return path


def test_find_the_outputs_of_torchscript_by_running_it(tmp_path: Path) -> None:
    stored = build_own(tmp_path, script(tmp_path / "twice.pt"), inputs=("FP32:-1", "FP32:3"))
    assert stored.config.platform == "pytorch_libtorch"
    assert stored.model.inputs == (
        TensorSpec("INPUT__0", "FP32", (-1,)),
        TensorSpec("INPUT__1", "FP32", (3,)),
    )
    assert stored.model.outputs == (
        TensorSpec("OUTPUT__0", "FP32", (-1,)),
        TensorSpec("OUTPUT__1", "FP32", (1,)),
    )
    # callers get a scalar as [1]
    assert [output.HasField("reshape") for output in stored.config.output] == [False, True]


def test_name_the_flags_that_torchscript_needs(tmp_path: Path) -> None:
    file = script(tmp_path / "twice.pt")
    with pytest.raises(UsageError, match="--input FP32:3,224,224"):
        build_own(tmp_path, file)
    with pytest.raises(BuildError, match="FP32:3"):
        build_own(tmp_path, file, inputs=("FP32:3",))
    with pytest.raises(UsageError, match="ONNX"):
        build_own(tmp_path, file, inputs=("FP32:3", "FP32:3"), precision="int8")


class Summed(torch.nn.Module):
    """Return the running sums of [time, n], as [time, n]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0)


@pytest.mark.parametrize(
    ("last", "activation"), [(torch.nn.Softmax(1), "none"), (torch.nn.Identity(), None)]
)
def test_keep_the_scores_of_torchscript(
    last: torch.nn.Module, activation: str | None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 4), last)
    torch.jit.script(network).save(str(tmp_path / "c.pt"))
    stored = build_own(tmp_path, tmp_path / "c.pt", inputs=("FP32:3,8,8",), client="resnet")
    assert stored.model.parameters.get("activation") == activation


def test_do_not_batch_torchscript_without_a_batch_dimension(tmp_path: Path) -> None:
    torch.jit.script(Summed()).save(str(tmp_path / "summed.pt"))
    with pytest.raises(BuildError, match="--max-batch-size 0"):
        build_own(tmp_path, tmp_path / "summed.pt", inputs=("FP32:2",))
    stored = build_own(tmp_path, tmp_path / "summed.pt", inputs=("FP32:-1,2",), max_batch_size=0)
    assert stored.model.outputs == (TensorSpec("OUTPUT__0", "FP32", (-1, 2)),)


class Growing(torch.nn.Module):
    """Return a tensor with as many dimensions as there are rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros([1] * x.shape[0])


def test_refuse_torchscript_whose_outputs_vary_in_rank(tmp_path: Path) -> None:
    torch.jit.script(Growing()).save(str(tmp_path / "growing.pt"))
    with pytest.raises(BuildError, match="dimensions"):
        build_own(tmp_path, tmp_path / "growing.pt", inputs=("FP32:2",))


class Rated(torch.nn.Module):
    """A network for sounds that takes their sampling rate as a number."""

    def forward(self, x: torch.Tensor, rate: int, gain: float = 2.0) -> torch.Tensor:
        return gain * x[:, :rate]


@pytest.mark.parametrize("inputs", [(), ("FP32:8", "INT64:1")])
def test_refuse_torchscript_that_takes_a_number(inputs: tuple[str, ...], tmp_path: Path) -> None:
    torch.jit.script(Rated()).save(str(tmp_path / "rated.jit"))
    with pytest.raises(BuildError, match="'rate'"):
        build_own(tmp_path, tmp_path / "rated.jit", inputs=inputs)


@pytest.mark.parametrize(
    "text", ["", "FP32", "FP99:3", "FP32:0", "FP32:3,,4", "FP32:-2", "a:b:c:d"]
)
def test_refuse_an_input_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError, match="--input"):
        parse_inputs([text])
