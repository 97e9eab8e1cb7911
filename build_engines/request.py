# ruff: noqa: RUF009  (`option` returns a field of the dataclass)
"""Declares the options of `build`. Each field of Request, except `model`, is also a flag of the
command line.

Two defaults of the command line differ from those here (request_of in __main__.py): `target` is
tensorrt if this machine has trtexec and a GPU, and `load` is true. As defaults of the class, they
would make its users depend on the machine, or start a server.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build_engines.errors import UsageError
from build_engines.recipes import RECIPES
from serving.clients import client_names, module_name

REPOSITORY = Path(__file__).resolve().parents[1] / "model_repository"
PRECISIONS = ("fp32", "fp16", "int8")
TARGETS = ("cpu", "openvino", "gpu", "tensorrt")
ON_A_GPU = ("gpu", "tensorrt")
NETWORK = "the network"
ENGINE = "the engine"
CLIENT = "the client"
CLIENTS = ", ".join(client_names()).replace("_", "-")
SERVING = "how Triton serves it (config.pbtxt)"


def option(group: str, default: Any, about: str, **keywords: Any) -> Any:
    """Declare a field and its flag, which is --NAME unless `keywords` contains `flag`. The other
    `keywords` go to argparse's add_argument. If `default` is callable, it creates the default."""
    initial = {"default_factory": default} if callable(default) else {"default": default}
    return field(**initial, metadata={"group": group, "help": about, **keywords})


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def count(text: str) -> int:
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value


def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, value


@dataclass(frozen=True)
class Request:
    """Describes what to build. If a field has the default 0, -1, "" or (), the build chooses its
    value unless the user sets it.

    `model` is the name of a recipe, or a name that the user chose. build.json records all fields
    that change the result, and the model is built again if one of them changes. The name of a
    client may contain hyphens, which become underscores.
    """

    model: str
    weights: str = option(NETWORK, "", "PATH or HUB-ID; default: the recipe's own")
    size: int = option(
        NETWORK, 0, "height and width of the input, if the network leaves them free", type=positive
    )
    inputs: tuple[str, ...] = option(
        NETWORK,
        (),
        "for TorchScript, such as FP32:3,224,224; for scikit-learn a column each, such as "
        "age:FP32:1",
        flag="--input",
        action="append",
        metavar="[NAME:]DATATYPE:DIMS",
    )
    allow_pickle: bool = option(
        NETWORK,
        False,
        "read a .joblib or .pkl file, which runs the code in it: only if you trust its author",
        action="store_true",
    )
    target: str = option(
        ENGINE,
        "cpu",
        "gpu: ONNX Runtime's TensorRT provider; default: tensorrt with trtexec and a GPU, else cpu",
        flag="--for",
        choices=TARGETS,
    )
    precision: str = option(ENGINE, "fp32", "default: fp32", choices=PRECISIONS)
    calibration: Path | None = option(
        ENGINE, None, "for INT8: a folder of images, or a file of texts", type=Path, metavar="PATH"
    )
    client: str = option(
        CLIENT, "", f"for your own model: {CLIENTS}; default: none (tensors in, tensors out)"
    )
    task: str = option(
        CLIENT, "", "for texts, if config.json does not decide: one of those in docs/models.md"
    )
    tokenizer: Path | None = option(
        CLIENT,
        None,
        "for an ONNX file of texts: its tokenizer's files",
        type=Path,
        metavar="FOLDER",
    )
    labels: Path | None = option(
        CLIENT, None, "file with one label per line", type=Path, metavar="FILE"
    )
    settings: Mapping[str, str] = option(
        CLIENT,
        dict,
        "setting of the client, as a parameter in config.pbtxt; repeatable",
        flag="--set",
        action="append",
        type=pair,
        metavar="NAME=VALUE",
    )
    max_batch_size: int = option(
        SERVING,
        -1,
        "the largest batch (by default 8, 32 or, for tables, 1024); 0: no batches",
        type=count,
        metavar="N",
    )
    instances: int = option(SERVING, 0, "how many run side by side", type=positive, metavar="N")
    repository: Path = option(
        "",
        REPOSITORY,
        "the model repository to build into",
        flag="--out",
        type=Path,
        metavar="REPOSITORY",
    )
    load: bool = option(
        "",
        False,
        "do not test the finished model with its example in a tritonserver",
        flag="--no-load",
        action="store_false",
    )
    compare: bool = option(
        "",
        True,
        "build INT8 even if its answers differ from fp32's, or from fewer than 8 samples",
        flag="--no-compare",
        action="store_false",
    )
    name: str = option(
        "", "", "the model's folder; default: MODEL, or MODEL_int8 for INT8 on a CPU"
    )

    def __post_init__(self) -> None:
        """Replace hyphens in the client's name. Raise UsageError if the --labels file or the
        --tokenizer folder does not exist."""
        object.__setattr__(self, "client", module_name(self.client))
        if self.labels and not self.labels.is_file():
            raise UsageError(f"--labels {self.labels}: there is no such file")
        if self.tokenizer and not self.tokenizer.is_dir():
            raise UsageError(f"--tokenizer {self.tokenizer}: there is no such folder")

    @property
    def named_client(self) -> str:
        """Return the client that --client names, or else the recipe's, or "" if there is
        neither."""
        recipe = RECIPES.get(self.model)
        return self.client or (recipe.client if recipe else "")

    @property
    def model_folder(self) -> Path:
        """Return the model's folder. Unless --name sets the folder's name, INT8 for a CPU gets a
        different folder from fp32, so that both can be served."""
        is_cpu_int8 = self.precision == "int8" and self.target not in ON_A_GPU
        default_name = f"{self.model}_int8" if is_cpu_int8 else self.model
        return self.repository / (self.name or default_name)
