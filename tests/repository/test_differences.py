"""What the log says of a configs/cpu.pbtxt that contradicts config.pbtxt, and of what it says nothing."""

from pathlib import Path

import pytest

from serving.repository.differences import contradiction
from tests.repository.test_engines import parameter
from tests.repository.test_model_config import ONNX, X, Y, write

BASE = f"{ONNX} {X} {Y} {parameter('resnet', 'client')}"
HERE = "m: configs/cpu.pbtxt counts here, and config.pbtxt says something else: "


def said(tmp_path: Path, base: str, own: str, device: str = "cpu") -> str:
    model = write(tmp_path / "m", base)
    (model / "configs").mkdir()
    (model / "configs/cpu.pbtxt").write_text(own)
    return contradiction(model, device)


@pytest.mark.parametrize(
    ("base", "own", "told"),
    [
        (BASE + parameter("3", "top_k"), BASE, "no parameter top_k, there '3';"),
        (BASE.replace("resnet", "yolov5"), BASE, "parameter client 'resnet', there 'yolov5';"),
        (BASE, parameter("bert", "client"), "parameter client 'bert', there 'resnet';"),
        (BASE.replace("FP32", "UINT8", 1), BASE, "input x TYPE_FP32 [1], there TYPE_UINT8 [1];"),
        (BASE.replace('"y"', '"z"'), BASE, "no output z;"),
        (
            BASE.replace('name: "y"', 'name: "y" label_filename: "new.txt"'),
            BASE,
            "output y TYPE_FP32 [1], there TYPE_FP32 [1] with new.txt;",
        ),
    ],
)
def test_what_has_nothing_to_do_with_the_machine_is_told(base: str, own: str, told: str, tmp_path: Path) -> None:
    line = said(tmp_path, base, own)
    assert line.startswith(HERE + told)
    assert line.endswith(
        "let configs/cpu.pbtxt say only what differs between machines, the rest is taken from config.pbtxt"
    )


@pytest.mark.parametrize(
    ("base", "own"),
    [
        (BASE, BASE),
        (BASE, BASE + parameter("2", "intra_op_thread_count") + parameter("LATENCY", "PERFORMANCE_HINT")),
        (BASE + parameter("1", "separate_runs") + parameter("0", "session.intra_op.allow_spinning"), BASE),
        (BASE + "dynamic_batching { } max_batch_size: 8", BASE + "instance_group { kind: KIND_CPU }"),
        (BASE, "instance_group { kind: KIND_CPU }"),
        (BASE, BASE + parameter("299", "size")),
    ],
)
def test_what_depends_on_the_machine_is_not(base: str, own: str, tmp_path: Path) -> None:
    assert said(tmp_path, base, own) == ""


def test_nothing_is_said_where_the_second_file_does_not_count_or_is_the_only_one(tmp_path: Path) -> None:
    assert said(tmp_path, BASE, parameter("bert", "client"), device="gpu") == ""
    (tmp_path / "m/config.pbtxt").unlink()
    assert contradiction(tmp_path / "m", "cpu") == ""
