"""Tests staging model folders for Triton, with the engine for the processor, and with a fingerprint
that shows changes."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.errors import ConfigError
from serving.host.tritonserver import backend_directory
from serving.repository import staging
from serving.repository.cpu_engine import (
    Choice,
    Processor,
    choice_lines,
    choose,
    served_config,
    this_processor,
)
from serving.repository.model_config import Unreadable, parse_config, read_config, read_file
from serving.repository.staging import Store, copy_model, signature
from serving.settings.settings import Settings
from tests.repository.test_model_config import ONNX, WHOLE, X, Y, write
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

RESNET = ROOT / "model_repository/resnet"


def store(folder: Path, **variables: str) -> Store:
    return Store(
        folder / "staged",
        Settings.from_env({"SERVE_DEVICE": "cpu"} | variables),
        backend_directory(),
    )


@pytest.mark.parametrize(
    ("engine", "backend"),
    [("openvino", ("", "openvino")), ("onnxruntime", ("onnxruntime_onnx", ""))],
)
def test_stage_a_model_with_the_engine_of_this_machine(
    engine: str, backend: tuple[str, str], tmp_path: Path
) -> None:
    models = store(tmp_path, SERVE_CPU_ENGINE=engine)
    choice = models.stage(RESNET, "net")
    assert choice and choice.engine == engine and "SERVE_CPU_ENGINE" in choice.reason
    config = read_file(tmp_path / "staged/net/config.pbtxt")
    assert (config.platform, config.backend) == backend
    assert (config.input, config.parameters["client"].string_value) == (
        read_config(RESNET, "gpu").input,
        "resnet",
    )
    assert (tmp_path / "staged/net/1").resolve() == RESNET / "1"
    models.remove("net")
    assert not list((tmp_path / "staged").iterdir())


def test_merge_a_partial_configuration_for_this_device(tmp_path: Path) -> None:
    (write(tmp_path / "net", WHOLE) / "configs").mkdir()
    (tmp_path / "net/configs/cpu.pbtxt").write_text("instance_group { kind: KIND_CPU }")
    for device, has in (("cpu", 1), ("gpu", 0)):
        store(tmp_path, SERVE_DEVICE=device).stage(tmp_path / "net", "net")
        config = read_file(tmp_path / "staged/net/config.pbtxt")
        assert (len(config.instance_group), config.input[0].name) == (has, "x")
        assert not (tmp_path / "staged/net/configs").exists()


def test_rename_the_parts_of_an_ensemble_to_their_names_in_triton(tmp_path: Path) -> None:
    step = 'ensemble_scheduling { step { model_name: "part" model_version: -1 } }'
    write(tmp_path / "whole", f"name: 'whole' {step}")
    store(tmp_path).stage(tmp_path / "whole", "a.tar.gz", {"part": "a.tar.gz__part"})
    config = read_file(tmp_path / "staged/a.tar.gz/config.pbtxt")
    assert (config.name, config.platform) == ("", "ensemble")
    assert config.ensemble_scheduling.step[0].model_name == "a.tar.gz__part"


@pytest.mark.parametrize(
    ("name", "file", "word"),
    [
        ("my net", "1/model.py", "rename"),
        ("modèle", "1/model.py", "rename"),
        ("n" * 256, "1/model.py", "rename"),
        ("net", "9223372036854775808/model.py", "below 2"),
        ("net", "1/Model.py", "has no model.py"),
    ],
)
def test_refuse_configurations_that_crash_or_hang_tritonserver(
    name: str, file: str, word: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "net", f'backend: "python" {X} {Y}')
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).touch()
    with pytest.raises(ConfigError, match=word):
        store(tmp_path).stage(folder, name)


def test_refuse_only_loaded_versions_without_model_py(tmp_path: Path) -> None:
    config = f'backend: "python" {X} {Y}'
    folder = write(tmp_path / "net", config)
    (folder / "2").mkdir()
    (folder / "2/model.py").touch()
    store(tmp_path).stage(folder, "net")
    (folder / "config.pbtxt").write_text(f"{config} version_policy {{ all {{ }} }}")
    with pytest.raises(ConfigError, match=r"1 has no model\.py"):
        store(tmp_path).stage(folder, "net")


def make(folder: Path) -> Path:
    (folder / "1").mkdir(parents=True)
    (folder / "1/model.onnx").write_text("weights")
    (folder / "config.pbtxt").write_text("as it lies")
    return folder


def rewrite(folder: Path) -> None:
    (folder / "config.pbtxt").write_text("of equal l.")


def replace_file(folder: Path) -> None:
    """Replace a file with one of the same size and time."""
    file, before = folder / "config.pbtxt", (folder / "config.pbtxt").stat()
    (folder / "new").write_text("of equal l.")
    os.utime(folder / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (folder / "new").replace(file)


def add_a_version(folder: Path) -> None:
    (folder / "2").mkdir()


def remove(folder: Path) -> None:
    (folder / "1/model.onnx").unlink()


@pytest.mark.parametrize("change", [rewrite, replace_file, add_a_version, remove])
def test_change_the_signature_with_any_file(tmp_path: Path, change: Callable[[Path], None]) -> None:
    before = signature(make(tmp_path / "model"))
    assert signature(tmp_path / "model") == before
    change(tmp_path / "model")
    assert signature(tmp_path / "model") != before


def test_ignore_files_no_model_reads_and_links_to_the_own_folder(tmp_path: Path) -> None:
    before = signature(make(tmp_path / "model"))
    (tmp_path / "model/.config.pbtxt.swp").touch()
    (tmp_path / "model/__pycache__").mkdir()
    (tmp_path / "model/1/again").symlink_to(tmp_path / "model")
    assert signature(tmp_path / "model") == before
    assert signature(tmp_path / "nowhere") == ""


def test_copy_a_model_and_link_its_large_files(tmp_path: Path) -> None:
    model = make(tmp_path / "model")
    with (model / "1/large").open("wb") as large:
        large.truncate(staging.LARGEST_COPY + 1)
    (model / "2").symlink_to(model / "1")
    copy_model(model, tmp_path / "copy", None)
    assert (tmp_path / "copy/1/large").samefile(model / "1/large")
    (model / "config.pbtxt").write_text("changed")
    (model / "new").write_text("another large one")
    (model / "new").replace(model / "1/large")
    assert (tmp_path / "copy/config.pbtxt").read_text() == "as it lies"
    for version in ("1", "2"):
        assert (tmp_path / "copy" / version / "large").stat().st_size == staging.LARGEST_COPY + 1


SAPPHIRE_RAPIDS = Processor(
    frozenset(["avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"])
)
ZEN_4 = Processor(frozenset(["avx512f", "avx512_bf16", "avx512_vnni"]))
CASCADE_LAKE = Processor(frozenset(["avx512f", "avx512_vnni"]))
GRAVITON_3 = Processor(frozenset(["asimd", "sve", "bf16", "i8mm"]))
BARE = replace(SAPPHIRE_RAPIDS, obstacle="OpenVINO is not installed")
NVIDIAS = replace(SAPPHIRE_RAPIDS, has_own_backend=False)
SETTINGS = {"SERVE_DEVICE": "cpu"}


def fit(model: Path, processor: Processor = CASCADE_LAKE, **more: str) -> tuple[Any, Choice | None]:
    return served_config(model, Settings.from_env(SETTINGS | more), processor)


def parameter(value: str, name: str = "cpu_engine") -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'


@pytest.mark.parametrize(
    ("processor", "engine", "why"),
    [
        (SAPPHIRE_RAPIDS, "openvino", "AMX"),
        (ZEN_4, "openvino", "AVX512-BF16"),
        (CASCADE_LAKE, "onnxruntime", "AVX512-BF16"),
        (GRAVITON_3, "onnxruntime", "AVX512-BF16"),
        (BARE, "onnxruntime", "not installed"),
        (NVIDIAS, "onnxruntime", "NVIDIA"),
    ],
)
def test_choose_the_engine_by_the_processor(processor: Processor, engine: str, why: str) -> None:
    choice = choose("auto", "auto", processor)
    assert choice and choice.engine == engine and why in choice.reason


@pytest.mark.parametrize("processor", [SAPPHIRE_RAPIDS, CASCADE_LAKE, NVIDIAS])
def test_let_the_configuration_and_then_the_setting_choose_the_engine(processor: Processor) -> None:
    for engine, other in (("openvino", "onnxruntime"), ("onnxruntime", "openvino")):
        for asked in ("", "auto"):
            choice = choose(asked, engine, processor)
            assert choice and choice.engine == engine and "SERVE_CPU_ENGINE" in choice.reason
        choice = choose(engine, other, processor)
        assert choice and choice.engine == engine and "cpu_engine" in choice.reason


def test_leave_a_model_without_an_engine_to_onnx_runtime() -> None:
    assert choose("", "auto", SAPPHIRE_RAPIDS) is None


def test_log_each_choice_once_and_not_for_each_model() -> None:
    choices = {
        name: choose("auto", "auto", cpu)
        for name, cpu in (("b", ZEN_4), ("a", ZEN_4), ("c", CASCADE_LAKE))
    }
    lines = choice_lines(
        {name: choice for name, choice in choices.items() if choice}, refused=False
    )
    assert [line.partition(":")[0] for line in lines] == ["a, b", "c"]
    refused = {"a": choose("openvino", "auto", BARE), "b": choose("", "openvino", BARE)}
    lines = choice_lines({name: choice for name, choice in refused.items() if choice}, refused=True)
    assert ["cpu_engine" in lines[0], "SERVE_CPU_ENGINE" in lines[1]] == [True, True]


def test_give_openvino_the_same_file_and_threads(tmp_path: Path) -> None:
    config = f"{WHOLE} {parameter('auto')} {parameter('3', 'intra_op_thread_count')}"
    adapted, _ = fit(write(tmp_path / "net", config), SAPPHIRE_RAPIDS)
    assert (adapted.platform, adapted.backend, adapted.default_model_filename) == (
        "",
        "openvino",
        "model.onnx",
    )
    assert adapted.parameters["INFERENCE_NUM_THREADS"].string_value == "3"
    assert adapted.parameters["cpu_engine_reason"].string_value.endswith("(AMX)")
    original = parse_config(config)
    assert (adapted.input, adapted.output) == (original.input, original.output)


def test_keep_another_file_name_and_openvino_s_own_threads(tmp_path: Path) -> None:
    own = f"{parameter('2', 'INFERENCE_NUM_THREADS')} {parameter('3', 'intra_op_thread_count')}"
    model = write(tmp_path / "net", f'{ONNX} default_model_filename: "net.onnx" {own}')
    adapted, _ = fit(model, SERVE_CPU_ENGINE="openvino")
    assert adapted.default_model_filename == "net.onnx"
    assert adapted.parameters["INFERENCE_NUM_THREADS"].string_value == "2"


@pytest.mark.parametrize(
    ("own", "precision"),
    [
        ("", "f32"),
        (parameter("auto"), ""),
        (parameter("bf16", "INFERENCE_PRECISION_HINT"), "bf16"),
        (parameter("YES", "HINT_BF16"), ""),
    ],
)
def test_compute_in_fp32_unless_the_model_itself_allows_bf16(
    own: str, precision: str, tmp_path: Path
) -> None:
    model = write(tmp_path / "net", f"{ONNX} {own}")
    adapted, _ = fit(model, SAPPHIRE_RAPIDS, SERVE_CPU_ENGINE="openvino")
    assert adapted.parameters["INFERENCE_PRECISION_HINT"].string_value == precision


@pytest.mark.parametrize(
    "backend", ['backend: "python"', 'platform: "pytorch_libtorch"', 'backend: "openvino"', ""]
)
def test_leave_models_of_other_backends_unchanged(backend: str, tmp_path: Path) -> None:
    model = write(tmp_path / "net", f"{backend} {X} {Y} {parameter('auto')}")
    assert fit(model, SERVE_CPU_ENGINE="openvino") == (read_config(model, "cpu"), None)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_allow_ragged_batches_only_in_backends_of_this_project(engine: str, tmp_path: Path) -> None:
    names = ("input_ids", "attention_mask", "masked_lm_positions")
    inputs = " ".join(
        f'input {{ name: "{name}" data_type: TYPE_INT64 dims: -1 }}' for name in names
    )
    batched = f"{ONNX} {inputs} max_batch_size: 8"
    model = write(tmp_path / "net", f"{batched} {parameter('512', 'ragged_batches')}")

    def fields(processor: Processor) -> list[tuple[bool, bool]]:
        config, _ = fit(model, processor, SERVE_CPU_ENGINE=engine)
        return [(spec.allow_ragged_batch, spec.optional) for spec in config.input]

    assert fields(SAPPHIRE_RAPIDS) == [(True, False), (True, True), (False, False)]
    assert fields(NVIDIAS) == [(False, False)] * 3
    model = write(tmp_path / "old", batched)
    assert fields(SAPPHIRE_RAPIDS) == [(False, False)] * 3


def test_choose_no_engine_on_a_gpu(tmp_path: Path) -> None:
    model = write(tmp_path / "net", f"{WHOLE} {parameter('auto')}")
    assert fit(model, SERVE_DEVICE="gpu", SERVE_CPU_ENGINE="openvino") == (
        read_config(model, "gpu"),
        None,
    )


def test_name_the_file_that_names_an_unknown_engine(tmp_path: Path) -> None:
    model = write(tmp_path / "net", f"{ONNX} {parameter('tensorflow')}")
    with pytest.raises(Unreadable, match=r"config\.pbtxt .*'tensorflow'"):
        fit(model)


def test_detect_the_machine_without_importing_openvino() -> None:
    processor = this_processor(backend_directory())
    assert (processor.obstacle, processor.has_own_backend) == ("", True)
    assert processor.features


def test_report_a_missing_backend_or_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "openvino" in this_processor(tmp_path).obstacle
    monkeypatch.setitem(sys.modules, "openvino", None)  # as if the package were not installed
    assert this_processor(backend_directory()).obstacle
