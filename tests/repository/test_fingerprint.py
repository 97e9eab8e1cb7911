"""What a plan was built for, as it is written, read back, compared and asked of the machine."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from serving.repository import fingerprint
from serving.repository.fingerprint import Build, Fingerprint, Hardware, source_sha256, this_hardware
from tests.support.stand_ins import CAPABILITY, DRIVER, GPU, Nvidia

T4 = Hardware("Tesla T4", "7.5", "10.8.0", "12.8.0", "550.54.15")
BUILT = Fingerprint(T4, Build("abc", "int8", {"x": ((1, 3), (4, 3), (8, 3)), "n": ((), (), ())}, "def"))


def test_it_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    BUILT.write(tmp_path)
    assert fingerprint.read(tmp_path) == BUILT
    shown = json.loads((tmp_path / "fingerprint.json").read_text())
    assert (shown["gpu"], shown["tensorrt"], shown["profile"]["x"]) == ("Tesla T4", "10.8.0", ["1x3", "4x3", "8x3"])


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"profile": {"x": 1}}', '{"gpu": "T4", "profile": {"x": ["a"]}}']
)
def test_what_is_no_fingerprint_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "fingerprint.json").write_text(text)
    assert fingerprint.read(tmp_path) is None


def test_where_there_is_none_there_is_none(tmp_path: Path) -> None:
    assert fingerprint.read(tmp_path) is None


def test_a_plan_fits_where_it_was_built() -> None:
    assert list(BUILT.differences(T4, "abc")) == []


@pytest.mark.parametrize(
    ("here", "source", "said"),
    [
        (
            replace(T4, gpu="NVIDIA A10G", compute_capability="8.6"),
            "abc",
            "was built for Tesla T4 and this is NVIDIA A10G",
        ),
        (replace(T4, compute_capability="8.6"), "abc", "compute capability 7.5 and this GPU has 8.6"),
        (replace(T4, tensorrt="8.6.1"), "abc", "it was built with TensorRT 10.8.0 and this is TensorRT 8.6.1"),
        (T4, "xyz", "from another ONNX file"),
    ],
)
def test_what_does_not_fit_is_said(here: Hardware, source: str, said: str) -> None:
    (difference,) = BUILT.differences(here, source)
    assert said in difference


@pytest.mark.parametrize(
    "here",
    [
        replace(T4, driver="535.1"),
        replace(T4, cuda="11.8"),
        replace(T4, compute_capability=""),
        replace(T4, tensorrt=""),
    ],
)
def test_the_driver_cuda_and_what_is_unknown_decide_nothing(here: Hardware) -> None:
    assert list(BUILT.differences(here, "abc")) == []


def test_plans_that_can_stand_for_each_other_have_one_key() -> None:
    same = [replace(BUILT, hardware=replace(T4, driver="1")), replace(BUILT, hardware=replace(T4, cuda="1"))]
    assert {each.key() for each in same} == {BUILT.key()}
    build = BUILT.build
    other = [
        replace(BUILT, hardware=replace(T4, gpu="A10G")),
        replace(BUILT, hardware=replace(T4, tensorrt="8.6.1")),
        replace(BUILT, build=replace(build, source_sha256="x")),
        replace(BUILT, build=replace(build, precision="fp16")),
        replace(BUILT, build=replace(build, profile={})),
        replace(BUILT, build=replace(build, calibration_sha256="")),
    ]
    assert len({each.key() for each in [BUILT, *other]}) == 7


def test_the_source_is_the_file_and_its_external_data(tmp_path: Path) -> None:
    onnx = tmp_path / "model.onnx"
    assert source_sha256(onnx) == ""
    onnx.write_bytes(b"graph")
    assert source_sha256(onnx) == hashlib.sha256(b"graph").hexdigest()
    (tmp_path / "model.onnx.data").write_bytes(b"weights")
    assert source_sha256(onnx) == hashlib.sha256(b"graphweights").hexdigest()


def test_the_machine_is_asked_through_nvidia_smi_and_the_library(tmp_path: Path) -> None:
    environ = Nvidia(tmp_path / "nvidia").environ
    assert this_hardware(environ) == Hardware(GPU, CAPABILITY, "10.8.0", "12.8.0", DRIVER)


def program(folder: Path, text: str) -> dict[str, str]:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_an_old_driver_knows_no_compute_capability(tmp_path: Path) -> None:
    environ = program(tmp_path, 'case "$*" in *compute_cap*) exit 2;; esac\necho "Tesla V100-SXM2-16GB, 470.82.01"')
    assert this_hardware(environ) == Hardware("Tesla V100-SXM2-16GB", driver="470.82.01")


@pytest.mark.parametrize("text", ["exit 9", "echo No devices were found; exit 6", "true", "echo No devices were found"])
def test_where_nvidia_smi_finds_nothing_there_is_nothing(tmp_path: Path, text: str) -> None:
    assert this_hardware(program(tmp_path, text)) is None


def test_without_nvidia_smi_there_is_nothing(tmp_path: Path) -> None:
    assert this_hardware({"PATH": str(tmp_path)}) is None


def test_the_first_of_several_gpus_counts(tmp_path: Path) -> None:
    environ = program(tmp_path, 'echo "NVIDIA A10G, 550.1, 8.6"; echo "NVIDIA A10G, 550.1, 8.6"')
    found = this_hardware(environ)
    assert found is not None and found.gpu == "NVIDIA A10G"
