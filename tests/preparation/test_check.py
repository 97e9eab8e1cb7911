"""`serve --check`: the bundled models pass, and each mistake is one line with model, file, what and what to do."""

import re
import shutil
from pathlib import Path

import pytest

from serving.preparation.check import check_models
from serving.settings.table import Settings
from tests.repository.test_repositories import make_ensemble
from tests.supervisor.test_serve import run
from tests.support.harness import ROOT, link_model, make_scale, make_sleeper

BUNDLED = ("bert", "efficientnet", "resnet", "yolov4_tiny", "yolov5")
CONFIG = "config.pbtxt"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """`resnet` of the bundled models, and those of the tests: nothing is wrong with them."""
    folder = tmp_path / "models"
    link_model(ROOT / "model_repository/resnet", folder)
    make_scale(folder)
    make_ensemble(folder)
    make_sleeper(folder)
    return folder


def findings(repository: Path, *models: str, device: str = "cpu") -> list[str]:
    """Of these models, or of all."""
    names = models or tuple(sorted(path.name for path in repository.iterdir()))
    settings = Settings(model_repositories=(repository,), load_models=names, device=device)
    return list(check_models(settings, {name: repository / name for name in names}))


def only(repository: Path, *models: str, device: str = "cpu") -> str:
    """The only finding's line."""
    found = findings(repository, *models, device=device)
    assert len(found) == 1, found
    return found[0]


def change(file: Path, old: str, new: str) -> None:
    """Writes a new file, for the old one may be a link to that of the repository."""
    text = file.read_text()
    assert old in text
    file.unlink()
    file.write_text(text.replace(old, new))


def replace_file(file: Path, data: bytes) -> None:
    file.unlink()
    file.write_bytes(data)


def test_nothing_is_wrong_with_these(repository: Path) -> None:
    assert findings(repository) == []
    assert findings(repository, device="gpu") == []


def test_the_bundled_models_pass() -> None:
    done = run("--check", SERVE_MODEL_REPOSITORY=str(ROOT / "model_repository"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"nothing is wrong with the settings and the models {', '.join(BUNDLED)}\n")


def test_each_finding_is_a_line_and_the_exit_code_is_1(repository: Path) -> None:
    (repository / "scale/2/model.onnx").unlink()
    change(repository / "resnet" / CONFIG, "max_batch_size", "max_batchsize")
    done = run("--check", SERVE_MODEL_REPOSITORY=str(repository), SERVE_DEVICE="cpu")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-2:] == [
        'resnet: config.pbtxt: it cannot be read: 3:1 : Message type "inference.ModelConfig" has no field named '
        '"max_batchsize".; correct it there',
        "scale: 2: found nothing; lay model.onnx there",
    ]


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"PORT": "no"}, "PORT='no' is wrong: it must be a whole number from 1 to 65535\n"),
        ({"SERVE_MODEL_REPOSITORY": "/absent"}, "there is no model repository /absent\n"),
        ({"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "x"}, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME names 'x', and there is"),
    ],
)
def test_settings_and_layout_are_checked_too(variables: dict[str, str], told: str) -> None:
    done = run("--check", **variables)
    assert done.returncode == 1
    assert done.stderr.startswith(told)


def test_warnings_of_a_start_are_shown_and_are_no_mistakes(repository: Path) -> None:
    (repository / "notes").mkdir()
    done = run("--check", SERVE_MODEL_REPOSITORY=str(repository), SERVE_WORKERZ="3")
    assert done.returncode == 0
    assert f"WARNING: {repository / 'notes'} is ignored: it is no model\n" in done.stdout
    assert re.search(r"^WARNING: SERVE_WORKERZ .* SERVE_WORKERS\?$", done.stdout, re.MULTILINE)


def test_a_configuration_of_the_other_device_is_read_too(repository: Path) -> None:
    change(repository / "resnet/configs/cpu.pbtxt", "KIND_CPU", "CPU")
    assert only(repository, "resnet", device="gpu").startswith("resnet: configs/cpu.pbtxt: it cannot be read: ")


def test_which_engine_runs_a_model_and_why(repository: Path) -> None:
    done = run("--check", SERVE_MODEL_REPOSITORY=str(repository), SERVE_DEVICE="cpu", SERVE_CPU_ENGINE="openvino")
    assert re.search("^.*resnet.*: OpenVINO, because SERVE_CPU_ENGINE says so$", done.stdout, re.MULTILINE)


def test_an_engine_that_there_is_not(repository: Path) -> None:
    change(repository / "resnet/configs/cpu.pbtxt", '"auto"', '"fast"')
    told = (
        "configs/cpu.pbtxt: InvalidRequest: parameter 'cpu_engine' is 'fast'; it must be auto, onnxruntime or openvino;"
    )
    assert told in only(repository, "resnet")


def test_another_name_than_the_folder_s(repository: Path) -> None:
    change(repository / "scale" / CONFIG, "platform", 'name: "double"\nplatform')
    expected = "scale: config.pbtxt: it says name: 'double'; leave it out, or name the folder double"
    assert only(repository, "scale") == expected


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("onnxruntime_onnx", "pytorch_libtorch", "found model.onnx; lay model.pt there"),
        ('platform: "onnxruntime_onnx"', 'backend: "onnxruntime" default_model_filename: "a.onnx"', "lay a.onnx there"),
        ("all {}", "specific { versions: [7] }", "its version_policy names version 7, which is not there; add it"),
    ],
)
def test_a_model_file_that_is_not_there(repository: Path, old: str, new: str, told: str) -> None:
    change(repository / "scale" / CONFIG, old, new)
    assert told in "\n".join(findings(repository, "scale"))


def test_only_the_versions_that_are_loaded_count(repository: Path) -> None:
    (repository / "scale/1/model.onnx").unlink()
    change(repository / "scale" / CONFIG, "version_policy { all {} }", "")
    assert findings(repository, "scale") == []


def test_a_plan_on_a_machine_without_a_gpu(repository: Path) -> None:
    (repository / "sleeper/1/model.plan").write_text("a plan")
    change(repository / "sleeper" / CONFIG, 'backend: "python"', 'platform: "tensorrt_plan"')
    found = only(repository, "sleeper")
    assert "--for tensorrt" in found and "--for gpu" in found


def test_a_model_of_openvino_needs_both_its_files_unless_it_is_an_onnx_file(repository: Path) -> None:
    change(repository / "scale" / CONFIG, 'platform: "onnxruntime_onnx"', 'backend: "openvino"')
    assert "lay model.xml there" in "\n".join(findings(repository, "scale"))
    for version in ("1", "2"):
        (repository / f"scale/{version}/model.xml").write_text("<net></net>")
    assert "model.xml is without its weights; lay model.bin there" in "\n".join(findings(repository, "scale"))
    config = repository / "scale" / CONFIG
    config.write_text(config.read_text() + 'default_model_filename: "model.onnx"\n')
    assert findings(repository, "scale") == []


def test_a_model_for_gpus_only_where_there_is_none(repository: Path) -> None:
    shutil.rmtree(repository / "resnet/configs")
    assert "KIND_GPU does not load on a machine without a GPU; lay a configs/cpu.pbtxt" in only(repository, "resnet")
    assert findings(repository, "resnet", device="gpu") == []


def test_a_step_that_maps_a_tensor_that_its_model_does_not_have(repository: Path) -> None:
    change(repository / "sixfold" / CONFIG, 'key: "x" value: "between"', 'key: "z" value: "between"')
    assert "its step 'scale' maps the input 'z', which that model does not have; it has x" in only(repository)


def test_steps_without_the_platform_of_an_ensemble(repository: Path) -> None:
    change(repository / "sixfold" / CONFIG, 'platform: "ensemble"', "")
    assert only(repository, "sixfold") == (
        'sixfold: config.pbtxt: it has steps and no platform; say platform: "ensemble"'
    )


def test_steps_that_lead_back_to_their_ensemble(repository: Path) -> None:
    """By an ensemble between them; one that only calls the two is in no circle."""
    steps = (repository / "sixfold" / CONFIG).read_text()
    for name, part in (("sixfold", "between"), ("between", "sixfold"), ("outside", "sixfold")):
        (repository / name / "1").mkdir(parents=True, exist_ok=True)
        (repository / name / CONFIG).write_text(steps.replace('model_name: "scale"', f'model_name: "{part}"'))
    assert findings(repository) == [
        f"{name}: config.pbtxt: its steps lead back to itself ({found}); an ensemble calls models in one direction"
        for name, found in (("between", "sixfold, between"), ("sixfold", "between, sixfold"))
    ]


def test_labels_that_do_not_match_the_output(repository: Path) -> None:
    replace_file(repository / "resnet/labels.txt", b"one\ntwo\n")
    lines = findings(repository, "resnet")
    assert len(lines) == 2, "one for each configuration"
    assert all("the client cannot be made: InvalidRequest: " in line and "10" in line for line in lines)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (None, "has its labels in names.txt, which is not there; add it"),
        ("a\nb\n", "names.txt: 2 labels for output 'y' of 3"),
    ],
)
def test_label_files_of_triton(repository: Path, labels: str | None, told: str) -> None:
    change(
        repository / "scale" / CONFIG,
        'name: "y" data_type: TYPE_FP32 dims: [-1]',
        'name: "y" data_type: TYPE_FP32 dims: [3] label_filename: "names.txt"',
    )
    if labels:
        (repository / "scale/names.txt").write_text(labels)
    assert told in only(repository, "scale")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("import numpy", "import numpyy", "client.py: the client cannot be made: ModuleNotFoundError: No module named"),
        ("class Client(ModelClient)", "class Client", "defines no class Client(ModelClient)"),
        ("import numpy as np", "import numpy as np\nraise SystemExit(3)", "the client cannot be made: SystemExit: 3"),
        ('b"0"', 'b"zero"', "client.py: DecodingError: not JSON"),
        ('"seconds": np', '"second": np', "client.py: of client.py the client makes no tensor 'seconds', which is"),
        ("[instances]", "instances * 2", "the client makes 'seconds' [] where the input is [1]"),
        ("np.float32", "np.float64", "the client makes 'seconds' of float64 where the input is FP32"),
        ("return {", "return instances[7] or {", "the client fails on it: IndexError: list index out of range"),
    ],
)
def test_a_client_that_does_not_work(repository: Path, old: str, new: str, told: str) -> None:
    change(repository / "sleeper/client.py", old, new)
    assert told in only(repository, "sleeper")


def test_a_client_that_there_is_not(repository: Path) -> None:
    change(repository / "resnet" / CONFIG, 'string_value: "resnet"', 'string_value: "resnext"')
    assert (
        "there is no client 'resnext'; the clients are: bert, detr, image_embedding, resnet, semantic_segmentation"
        in findings(repository, "resnet")[0]
    )


def test_an_example_that_is_not_decoded(repository: Path) -> None:
    replace_file(repository / "resnet/example.png", b"no picture")
    assert "resnet: example.png: DecodingError: not an image" in findings(repository, "resnet")[0]


def test_a_model_without_a_configuration_is_left_to_triton(repository: Path) -> None:
    (repository / "scale" / CONFIG).unlink()
    assert findings(repository, "scale") == []
    (repository / "scale/2/model.onnx").unlink()
    assert "scale: 2: found nothing; lay model.onnx or model.plan or" in only(repository, "scale")


def test_models_of_the_multi_model_mode_come_later() -> None:
    done = run("--check", SAGEMAKER_MULTI_MODEL="true")
    assert (done.returncode, "archives are looked at when they are loaded" in done.stdout) == (0, True)
