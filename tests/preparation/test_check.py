"""Tests that `serve --check` prints a line for each mistake, and that a start ends with the
mistakes that Triton finds."""

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from serving.preparation.check import check_models, failures_in_tritonserver
from serving.settings.settings import Settings
from tests.pid1.test_serve import run
from tests.repository.test_repositories import make_ensemble
from tests.support.harness import (
    PATIENCE,
    ROOT,
    Server,
    link_model,
    make_both_scales,
    make_sleeper,
    wait_until,
)

pytestmark = pytest.mark.stack

CONFIG = "config.pbtxt"
CLIENT = "client.py"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a repository without mistakes: `resnet` and models for the tests."""
    folder = tmp_path / "models"
    link_model(ROOT / "model_repository/resnet", folder)
    make_both_scales(folder)
    make_ensemble(folder)
    make_sleeper(folder)
    return folder


def findings(repository: Path, *models: str) -> list[str]:
    names = models or tuple(sorted(path.name for path in repository.iterdir()))
    folders = {name: repository / name for name in names}
    return [f"{name}: {mistake}" for name, mistake in check_models(Settings(), folders)]


def change(file: Path, old: str, new: str) -> None:
    """Replace text in a file. Write a new file, because the old one may be a link to a file of this
    project."""
    text = file.read_text()
    assert old in text
    file.unlink()
    file.write_text(text.replace(old, new))


def test_pass_models_without_mistakes(repository: Path, bundled: Path) -> None:
    assert findings(repository) == []
    done = run("--check", SERVE_MODEL_REPOSITORY=str(bundled))
    assert (done.returncode, done.stderr) == (0, "")


def test_fail_every_model_if_tritonserver_does_not_start(repository: Path) -> None:
    settings = Settings.from_env(
        {"SERVE_DEVICE": "cpu", "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--backend-config=wrong"}
    )
    names = ["scale", "sleeper"]
    assert [
        name
        for name, _ in failures_in_tritonserver(
            settings, {name: repository / name for name in names}, names
        )
    ] == names


def test_print_one_line_per_finding_and_exit_with_1(repository: Path) -> None:
    change(repository / "sleeper/client.py", "import numpy", "import numpyy")
    change(repository / "scale" / CONFIG, 'name: "y"', 'name: "y" label_filename: "labels.txt"')
    (repository / "resnet/example.png").unlink()
    (repository / "resnet/example.png").write_bytes(b"no picture")
    done = run("--check", SERVE_MODEL_REPOSITORY=str(repository), SERVE_DEVICE="cpu")
    assert (done.returncode, done.stderr) == (1, "")
    lines = [line.split(": ")[:2] for line in done.stdout.splitlines() if ": " in line]
    files = [["resnet", CONFIG], ["resnet", "configs/cpu.pbtxt"], ["sleeper", CLIENT]]
    assert [line for line in lines if line[1].endswith((".pbtxt", ".py"))] == files
    without_labels = {line[0] for line in lines if line[1] != "loads and answers"}
    assert without_labels >= {"scale", "sixfold"}


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"PORT": "no"}, "PORT"),
        ({"SERVE_MODEL_REPOSITORY": "/absent"}, "/absent"),
        ({"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "x"}, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"),
    ],
)
def test_check_settings_and_layout_too(variables: dict[str, str], name: str) -> None:
    done = run("--check", **variables)
    assert (done.returncode, name in done.stderr) == (1, True)


def test_show_warnings_without_failing(tmp_path: Path) -> None:
    link_model(ROOT / "model_repository/resnet", tmp_path)
    (tmp_path / "notes").mkdir()
    done = run(
        "--check",
        SERVE_MODEL_REPOSITORY=str(tmp_path),
        SERVE_WORKERZ="3",
        SERVE_CPU_ENGINE="openvino",
    )
    assert done.returncode == 0
    warned = [line for line in done.stdout.splitlines() if line.startswith("WARNING: ")]
    assert [word for word in ("notes", "SERVE_WORKERZ") if any(word in line for line in warned)]
    assert any("resnet" in line and "OpenVINO" in line for line in done.stdout.splitlines()), (
        "the chosen engine"
    )


def test_read_the_configuration_of_the_other_device_too(repository: Path) -> None:
    change(repository / "resnet/configs/cpu.pbtxt", "KIND_CPU", "CPU")
    (line,) = findings(repository, "resnet")
    assert line.startswith("resnet: configs/cpu.pbtxt: ")


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("import numpy", "import numpyy", "ModuleNotFoundError"),
        ("class Client(ModelClient)", "class Client", "ModelClient"),
        ("import numpy as np", "import numpy as np\nraise SystemExit(3)", "SystemExit"),
        ('b"0"', 'b"zero"', "any JSON value: not JSON"),
        ('example = b"0"', "side = 0", "add one as example.*"),
        ('"seconds": np', '"second": np', "'seconds'"),
        ("[instances]", "instances * 2", "'seconds'"),
        ("np.float32", "np.float64", "float64"),
        ("return {", "return instances[7] or {", "IndexError: list index out of range (line"),
    ],
)
def test_report_a_client_that_does_not_work(
    repository: Path, old: str, new: str, name: str
) -> None:
    change(repository / "sleeper/client.py", old, new)
    (line,) = findings(repository, "sleeper")
    assert name in line


@pytest.mark.parametrize(
    ("file", "old", "new", "name"),
    [
        (CONFIG, 'string_value: "resnet"', 'string_value: "resnext"', "resnext"),
        (CONFIG, "parameters {", 'parameters { key: "top_kk" value { } }\nparameters {', "top_kk"),
        ("labels.txt", "0\n", "", "labels"),
    ],
)
def test_check_the_settings_of_a_client(
    repository: Path, file: str, old: str, new: str, name: str
) -> None:
    change(repository / "resnet" / file, old, new)
    assert all(name in line for line in findings(repository, "resnet")) and findings(
        repository, "resnet"
    )


def test_leave_a_model_without_a_configuration_to_triton(repository: Path) -> None:
    (repository / "scale" / CONFIG).unlink()
    assert findings(repository, "scale") == []


def test_report_models_that_triton_refuses_or_whose_example_fails(repository: Path) -> None:
    change(repository / "scale" / CONFIG, "TYPE_FP32", "TYPE_FP64")
    head = "def execute(self, requests):"
    change(repository / "sleeper/1/model.py", head, f"{head}\n        1 / 0")
    # a short path, because a socket's path must be short
    with tempfile.TemporaryDirectory() as scratch:
        done = run(
            "--check", SERVE_MODEL_REPOSITORY=str(repository), SERVE_DEVICE="cpu", TMPDIR=scratch
        )
        assert not list(Path(scratch).glob("serve-check-*"))
    verdicts = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 1 and verdicts["resnet"] == "loads and answers"
    assert "FP64" in verdicts["scale"] and "division by zero" in verdicts["sleeper"]


def test_give_no_verdict_and_clean_up_when_the_check_is_stopped(repository: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        variables = {
            "SERVE_MODEL_REPOSITORY": str(repository),
            "SERVE_DEVICE": "cpu",
            "TMPDIR": scratch,
        }
        check = subprocess.Popen([ROOT / "serve", "--check"], env=os.environ | variables)
        wait_until(
            lambda: list(Path(scratch).glob("serve-check-*/grpc.sock*")), "tritonserver is live"
        )
        check.terminate()
        assert check.wait(PATIENCE) == 128 + signal.SIGTERM
        assert not list(Path(scratch).glob("serve-check-*"))


def test_check_no_archives_in_multi_model_mode() -> None:
    assert run("--check", SAGEMAKER_MULTI_MODEL="true").returncode == 0


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        # Triton's index has a reason for this one
        ("scale/config.pbtxt", "TYPE_FP32", "TYPE_FP64"),
        # Triton's index has no reason for this one, because it refuses the configuration
        ("scale/config.pbtxt", "onnxruntime_onnx", "onnx"),
        ("sixfold/config.pbtxt", 'key: "x" value: "between"', 'key: "z" value: "between"'),
        ("sixfold/config.pbtxt", 'model_name: "scale"', 'model_name: "sixfold"'),
        ("sleeper/1/model.py", "import time", "import a_module_that_is_missing"),
    ],
)
def test_name_a_model_that_cannot_be_loaded_at_the_start(
    tmp_path: Path, file: str, old: str, new: str
) -> None:
    make_both_scales(tmp_path / "models")
    make_ensemble(tmp_path / "models")
    make_sleeper(tmp_path / "models")
    change(tmp_path / "models" / file, old, new)
    server = Server(tmp_path, tmp_path / "models", SERVE_DEVICE="cpu")
    assert server.wait_ended() == 1
    assert f"'{Path(file).parts[0]}'" in str(server.entries("serve")[-1]["message"])


def test_report_a_mistake_in_the_client_once(repository: Path) -> None:
    model = repository / "sleeper"
    (model / "configs").mkdir()
    (model / "configs/cpu.pbtxt").write_text("max_batch_size: 4")
    change(model / CLIENT, "import numpy", "import numpyy")
    (line,) = findings(repository, "sleeper")
    assert line.startswith("sleeper: client.py: ")
