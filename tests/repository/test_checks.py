"""Tests that configurations with forbidden requests to Triton are refused, and the estimate of a
model's memory."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clients.base import Model
from serving.errors import ConfigError, InvalidRequest
from serving.host.machine import memory_limit
from serving.repository import checks
from serving.repository.checks import memory_of
from serving.repository.model_config import Unreadable, parse_config, read_config
from tests.repository.test_model_config import ONNX, WHOLE, X, Y, write
from tests.repository.test_staging import parameter, store

pytestmark = pytest.mark.unit


def stage(folder: Path, config: str, root: Path | None = None) -> None:
    """Stage a model with this configuration."""
    (folder / "net/1").mkdir(parents=True, exist_ok=True)
    (folder / "net/config.pbtxt").write_text(f"{WHOLE} {config}")
    store(folder).stage(folder / "net", "net", root=root)


def labels(name: str) -> str:
    return f'output {{ name: "z" data_type: TYPE_FP32 dims: [1] label_filename: "{name}" }}'


def warmup(fields: str, dims: str = "1", batch: int = 1) -> str:
    data = f"data_type: TYPE_FP32 dims: [{dims}] {fields}"
    return (
        f'model_warmup {{ name: "w" batch_size: {batch} count: 1 '
        f'inputs {{ key: "x" value {{ {data} }} }} }}'
    )


OPERATIONS = 'model_operations {{ op_library_filename: "{}" }}'
FILES: dict[str, Callable[[str], str]] = {
    "label_filename": labels,
    "default_model_filename": 'default_model_filename: "../{}"'.format,
    "cc_model_filenames": 'cc_model_filenames {{ key: "8.0" value: "../{}" }}'.format,
    "input_data_file": lambda name: warmup(f'input_data_file: "../{name}"'),
}
LIBRARIES: dict[str, Callable[[str], str]] = {
    "op_library_filename": OPERATIONS.format,
    "CPU_EXTENSION_PATH": lambda name: parameter(name, "CPU_EXTENSION_PATH"),
}


@pytest.mark.parametrize("field", FILES)
@pytest.mark.parametrize("name", ["../secret", "../../secret", "deep/../../secret"])
def test_refuse_a_named_file_outside_the_model_s_folder(
    tmp_path: Path, field: str, name: str
) -> None:
    with pytest.raises(ConfigError, match=r"'.*secret' is not inside the model's folder"):
        stage(tmp_path, FILES[field](name))


@pytest.mark.parametrize("name", ["/etc/passwd", "a\\000b", "n" * 300])
def test_refuse_a_file_name_that_no_folder_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"passwd|leads nowhere"):
        stage(tmp_path, labels(name))


@pytest.mark.parametrize("field", FILES | LIBRARIES)
def test_refuse_a_named_file_that_leads_out_of_its_archive(tmp_path: Path, field: str) -> None:
    """A link in this archive leads to another archive, whose link leads out of it."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other/evil").symlink_to("/etc")
    root = tmp_path / "archive"
    (root / "net").mkdir(parents=True)
    (root / "net/l").symlink_to(tmp_path / "other")
    (root / "net/warmup").mkdir()
    with pytest.raises(ConfigError, match="leads to /etc/passwd, out of"):
        stage(root, (FILES | LIBRARIES)[field]("l/evil/passwd"), root)


@pytest.mark.parametrize("name", ["/etc/passwd", "../../secret"])
def test_refuse_a_library_outside_its_archive(tmp_path: Path, name: str) -> None:
    for number, field in enumerate(LIBRARIES):
        folder = tmp_path / str(number)
        with pytest.raises(ConfigError, match="out of"):
            stage(folder, LIBRARIES[field](name), folder)


@pytest.mark.parametrize("field", FILES | LIBRARIES)
def test_refuse_a_named_fifo_in_every_repository(tmp_path: Path, field: str) -> None:
    (tmp_path / "net/warmup").mkdir(parents=True)
    os.mkfifo(tmp_path / "net/fifo")
    (tmp_path / "net/link").symlink_to("fifo")
    with pytest.raises(ConfigError, match="is neither a file nor a folder"):
        stage(tmp_path, (FILES | LIBRARIES)[field]("link"))


def test_refuse_packages_that_are_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="is neither a file nor a folder"):
        stage(tmp_path, parameter(str(tmp_path / "fifo"), "EXECUTION_ENV_PATH"))


def test_allow_links_that_lead_out_of_an_operator_s_folder(tmp_path: Path) -> None:
    """Kubernetes creates such folders: labels.txt -> ..data/labels.txt, ..data -> ..2026."""
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026/labels.txt").write_text("cat")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "net").mkdir()
    (tmp_path / "net/labels.txt").symlink_to("../..data/labels.txt")
    stage(tmp_path, labels("labels.txt"))
    file = Model("net", tmp_path / "net", (), ()).file("labels.txt")
    assert (file, file.read_text()) == (tmp_path / "..2026/labels.txt", "cat")


def test_read_no_fifo_in_a_client(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "labels.txt")
    with pytest.raises(InvalidRequest, match="neither a file nor a folder"):
        Model("net", tmp_path, (), ()).file("labels.txt")


@pytest.mark.parametrize(
    "config",
    [
        "instance_group { count: 100000 }",
        "instance_group { count: 257 }",
        "instance_group { count: 1 } " * 257,
        "instance_group { count: 1 gpus: [" + ", ".join(map(str, range(257))) + "] }",
        "max_batch_size: 2147483647 sequence_batching { direct {} }",
        "sequence_batching { oldest { max_candidate_sequences: 2147483647 } }",
        "dynamic_batching { priority_levels: 1000000000000 }",
        'sequence_batching { state { input_name: "s" dims: [65536, 65536] } }',
        'input { name: "large" dims: [3, 65536, 65536] }',
        "input { dims: [3, 65536, 65536] }",
        'output { name: "large" dims: [-1, 65536, 65536] }',
        warmup("zero_data: true", dims="1048576, 1048576"),
        warmup("zero_data: true", dims="1048576", batch=1048576),
        warmup("random_data: true").replace("count: 1", "count: 4000000000"),
        parameter("100000", "intra_op_thread_count"),
        parameter(" +1_00000", "intra_op_thread_count"),
        parameter("9" * 5000, "INFERENCE_NUM_THREADS"),
    ],
)
def test_refuse_numbers_that_would_exhaust_the_machine(tmp_path: Path, config: str) -> None:
    with pytest.raises(ConfigError, match="at most"):
        stage(tmp_path, config)


def test_count_instances_of_all_loaded_versions(tmp_path: Path) -> None:
    for number in range(2, 130):
        (tmp_path / f"net/{number}").mkdir(parents=True)
    with pytest.raises(ConfigError, match="258 instances"):
        stage(tmp_path, "instance_group { count: 2 } version_policy { all {} }")


@pytest.mark.parametrize(
    "config",
    [
        'backend: "../../x"',
        'backend: "/tmp/x"',
        'backend: ".."',
        'platform: "../x"',
        'runtime: "../x.so"',
        'model_repository_agents { agents { name: "../x" } }',
        'instance_group { name: "a; touch x" }',
        'backend: "python" default_model_filename: "a b.py"',
    ],
)
def test_refuse_names_that_lead_elsewhere(tmp_path: Path, config: str) -> None:
    write(tmp_path / "net", f"{X} {Y} {config}")
    with pytest.raises(ConfigError, match="is not a name"):
        store(tmp_path).stage(tmp_path / "net", "net")


def test_refuse_more_instances_than_this_machine_can_hold(tmp_path: Path) -> None:
    stage(tmp_path, "instance_group { count: 3 }")
    with (tmp_path / "net/1/model.onnx").open("wb") as weights:
        weights.truncate(2 * memory_limit() // (5 * checks.PER_BYTE_OF_FILES))
    stage(tmp_path, "instance_group { count: 2 }")
    with pytest.raises(ConfigError, match="3 instances, which take about"):
        stage(tmp_path, "instance_group { count: 3 }")


@pytest.mark.parametrize(
    ("config", "instances", "files"),
    [
        ("", 1, 30),
        ("instance_group { count: 3 } instance_group { count: 2 }", 5, 150),
        ("version_policy { all {} } instance_group { count: 2 }", 4, 260),
        ("version_policy { specific { versions: 1 } }", 1, 100),
        ('backend: "pytorch" instance_group { count: 3 }', 3, 30),
    ],
)
def test_estimate_memory_of_all_instances_of_loaded_versions(
    tmp_path: Path, config: str, instances: int, files: int
) -> None:
    for version, size in (("1", 100), ("2", 30)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "model.onnx").write_bytes(bytes(size))
    expected = instances * checks.PER_INSTANCE + checks.PER_BYTE_OF_FILES * files
    assert memory_of(tmp_path, parse_config(config)) == expected


@pytest.mark.parametrize("file", ["config.pbtxt", "configs/cpu.pbtxt"])
def test_refuse_a_configuration_of_megabytes(tmp_path: Path, file: str) -> None:
    (write(tmp_path / "net", ONNX) / "configs").mkdir()
    with (tmp_path / "net" / file).open("wb") as opened:
        opened.truncate(2**40)
    with pytest.raises(Unreadable, match="more than 1048576 bytes"):
        read_config(tmp_path / "net", "cpu")
