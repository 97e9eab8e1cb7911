"""The description of a model that a family has written, the folder that is built from it, and how
to read it back.

    weights --family--> ModelSpec --engine--> 1/model.onnx or 1/model.plan
        --> config.pbtxt, labels.txt, build.json

config.pbtxt is written through Triton's own protobuf, so Triton can read it. A folder is made in a
scratch folder, which is renamed when it is complete.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from build_engines.engines.trtexec import this_gpu
from build_engines.errors import BuildError, UsageError
from build_engines.request import Request
from clients.base import Model, ModelClient, TensorSpec
from serving.clients import make_client
from serving.host.tritonserver import backend_directory, binary
from serving.model_status.served_model import describe_model
from serving.preparation.check import check_models, failures
from serving.repository.layout import CONFIG, config_file, versions
from serving.repository.model_config import (
    ENSEMBLE,
    Unreadable,
    backend_of,
    configs_of_parts,
    datatype_name,
    is_map,
    is_whole,
    merged,
    parse_config,
    read_merged,
)
from serving.repository.model_config import read_config as config_on
from serving.settings.table import Settings

# Triton's platforms
ONNX, TORCHSCRIPT, PLAN = "onnxruntime_onnx", "pytorch_libtorch", "tensorrt_plan"
MODEL_FILES = {ONNX: "model.onnx", TORCHSCRIPT: "model.pt", PLAN: "model.plan"}
HEADER = "# Written by python -m build_engines.\n"
RECORD = "build.json"  # the request a folder was built from, and the digests of its files
SCRATCH, STALE = ".build-", 86400  # seconds


def full_shape(tensor: TensorSpec, batch: int, length: int) -> tuple[int, ...]:
    """Return the tensor's shape with `batch` in front, 0 for none, and `length` for each dimension
    that varies."""
    return (*([batch] if batch else []), *(length if size == -1 else size for size in tensor.shape))


@dataclass(frozen=True)
class ModelSpec:
    """A model whose folder has 1/model.onnx in fp32 (or 1/model.pt), labels and an example already.

    `client` is a module of clients/, "" for none; `settings` are what config.pbtxt's `parameters`
    tell it; `max_batch_size` 0 means no batch dimension; `lengths` are the least, the usual and the
    most that a dimension of -1 is. `note` is a comment for config.pbtxt; `cpu_only`: no GPU
    computes its operators.
    """

    client: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    max_batch_size: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    platform: str = ONNX
    lengths: tuple[int, int, int] = (1, 128, 512)
    labels: str = ""
    note: str = ""
    cpu_only: bool = False

    @property
    def cpu_instances(self) -> int:
        """Return the instances on a CPU: 1 if the backend merges waiting requests into runs on all
        processors."""
        return 1 if self.platform == ONNX and self.max_batch_size else 2

    @property
    def file(self) -> str:
        """Return the name of the model's file."""
        return MODEL_FILES[self.platform]

    def profile(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Return the least, the usual and the largest shape of each input, batch dimension
        included."""
        most = self.max_batch_size
        sizes = list(
            zip((1, max(most // 2, 1), most) if most else (0, 0, 0), self.lengths, strict=True)
        )
        return {
            spec.name: tuple(full_shape(spec, batch, length) for batch, length in sizes)
            for spec in self.inputs
        }


@dataclass(frozen=True)
class Engine:
    """The engine that was built from 1/model.onnx.

    `bound_to` says on which GPU and versions the engine depends, "engine" in build.json.
    `cpu_only`: it always runs on a CPU. `cpu_parameters` go into the configuration for a CPU;
    `accelerator` are the parameters of ONNX Runtime's TensorRT provider in the configuration for a
    GPU.
    """

    platform: str
    precision: str
    bound_to: Mapping[str, str] = field(default_factory=dict)
    preferred_batch_sizes: tuple[int, ...] = ()
    cpu_only: bool = False
    cpu_parameters: Mapping[str, str] = field(default_factory=dict)
    accelerator: Mapping[str, str] = field(default_factory=dict)


def model_config(
    model_spec: ModelSpec, platform: str, kind: str, count: int, request: Request
) -> Any:
    """Return the ModelConfig of the model on `platform`, with `count` instances on `kind`
    (KIND_CPU, KIND_GPU)."""
    config = model_config_pb2.ModelConfig(
        platform=platform, max_batch_size=model_spec.max_batch_size
    )
    for spec in model_spec.inputs:
        _tensor(config.input.add(), spec, model_spec.max_batch_size)
    for spec in model_spec.outputs:
        _tensor(config.output.add(), spec, model_spec.max_batch_size)
    if model_spec.labels:
        config.output[0].label_filename = model_spec.labels
    group = config.instance_group.add(count=request.instances or count)
    group.kind = group.Kind.Value(kind)
    if model_spec.max_batch_size:
        config.dynamic_batching.SetInParent()
    parameters = ({"client": model_spec.client} if model_spec.client else {}) | dict(
        model_spec.settings
    )
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return config


def _tensor(target: Any, spec: TensorSpec, max_batch_size: int) -> None:
    """Declare a tensor. config.pbtxt has no scalars: callers send [1], or [n, 1]; the model gets
    [], or [n]."""
    target.name, target.data_type = spec.name, data_type(spec.datatype)
    target.dims.extend(spec.shape or (1,))
    if not spec.shape and max_batch_size:
        target.reshape.SetInParent()


def data_type(datatype: str) -> int:
    """Return Triton's enum of a datatype: FP32, INT64, BYTES …"""
    return int(model_config_pb2.DataType.Value(f"TYPE_{datatype.replace('BYTES', 'STRING')}"))


def render(config: Any, note: str = "") -> str:
    """Return a ModelConfig as the text of a config.pbtxt, with `note` as a comment at its top."""
    comment = "".join(f"# {line}\n" for line in note.splitlines())
    text: str = text_format.MessageToString(config, use_short_repeated_primitives=True)
    return HEADER + comment + text


def difference(base: Any, other: Any) -> Any:
    """Return the configs/NAME.pbtxt with which `serve` turns config.pbtxt, `base`, into `other`:
    the differences, or all."""
    own = model_config_pb2.ModelConfig()
    for each, value in other.ListFields():
        there = getattr(base, each.name)
        if is_map(each):
            for key in (key for key in value if key not in there or there[key] != value[key]):
                getattr(own, each.name)[key].CopyFrom(value[key])
        elif value != there:
            own.MergeFrom(type(other)(**{each.name: value}))
    return own if not is_whole(own) and merged(base, own, render(own)) == other else other


def read_config(folder: Path) -> Any:
    """Return a model folder's config.pbtxt as a ModelConfig."""
    return parse_config((folder / "config.pbtxt").read_text(encoding="utf-8"))


def specs(tensors: Sequence[Any]) -> tuple[TensorSpec, ...]:
    """Return a ModelConfig's inputs or outputs."""
    return tuple(
        TensorSpec(each.name, datatype_name(each.data_type), tuple(each.dims)) for each in tensors
    )


def parameters_of(config: Any) -> dict[str, str]:
    """Return a ModelConfig's `parameters`."""
    return {key: value.string_value for key, value in config.parameters.items()}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """Return $BUILD_ENGINES_CACHE, else triton-multi-model in the user's cache folder."""
    if folder := os.environ.get("BUILD_ENGINES_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triton-multi-model"


def read_lines(file: Path) -> list[str]:
    """Return the lines that are not empty. Raise OSError or UnicodeDecodeError if it is not a text
    file."""
    return [line.strip() for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]


def write_labels(target: Path, labels: Sequence[str], file: Path | None) -> bool:
    """Write the labels of `file`, else `labels`. Return whether there are any. Raise UsageError for
    a bad file, and for a label with a line end, because each line of a file is one label."""
    if file:
        try:
            labels = read_lines(file)
        except (OSError, UnicodeDecodeError) as err:
            raise UsageError(f"--labels {file}: {err}") from err
    if broken := next((label for label in labels if "\n" in label or "\r" in label), None):
        raise UsageError(
            f"the name {broken!r} has a line end, and {target.name} has a name on each "
            "line: rename it"
        )
    if labels:
        target.write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    return bool(labels)


def read_record(folder: Path) -> dict[str, Any]:
    """Return build.json's content, or {} without one."""
    try:
        return dict(json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def write_record(folder: Path, made_from: Mapping[str, Any], source: str, engine: Engine) -> None:
    """Write build.json into the finished folder; `source` is the SHA-256 of the fp32 model."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    record = {
        "made_from": made_from,
        "source_sha256": source,
        "precision": engine.precision,
        "platform": engine.platform,
        "engine": dict(engine.bound_to),
        "files": {name: digest(folder / name) for name in names},
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def changed_files(folder: Path, record: Mapping[str, Any]) -> list[str]:
    """Return the names of files that are missing or have changed since the build."""
    files = record["files"].items()
    return [
        name for name, sha in files if not (folder / name).is_file() or digest(folder / name) != sha
    ]


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder in `parent`, which Triton and the tools ignore. Remove it at the end in
    any case, and `parent` if that is new too and empty.

    Folders that killed builds left are removed after a day.
    """
    new = not parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{SCRATCH}*"):
        if time.time() - left.stat().st_mtime > STALE:
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if new:
            with contextlib.suppress(OSError):
                parent.rmdir()


def check(folder: Path, name: str) -> None:
    """Check the folder of the model `name` as `serve --check` does. Raise BuildError with the first
    finding."""
    for finding in check_models(Settings.from_env({}), {name: folder}):
        raise BuildError(f"the model would not be served: {finding.removeprefix(f'{name}: ')}")


def installed_backends() -> set[str]:
    """Return the names of tritonserver's backends. Raise FileNotFoundError without tritonserver."""
    binary()
    return {path.name for path in backend_directory().iterdir()}


def load(
    folder: Path, target: Path, find_backends: Callable[[], set[str]] = installed_backends
) -> None:
    """Load the finished folder, which will become `target`, into a tritonserver, and test it with
    its example. Raise BuildError if it would not be served. If it was not loaded, print why."""
    settings, others = Settings.from_env({}), target.parent
    try:
        backends = find_backends()
    except FileNotFoundError as err:
        print(f"not loaded: {err}", flush=True)
        return
    config = config_on(folder, settings.device)
    parts = configs_of_parts(config, lambda name: config_on(others / name, settings.device))
    needed = {backend_of(each) for each in (config, *parts.values())} - {ENSEMBLE}
    if missing := needed - backends:
        print(f"not loaded: the tritonserver here has no backend '{min(missing)}'", flush=True)
        return
    folders = {target.name: folder} | {name: others / name for name in parts}
    for _, reason in failures(settings, folders, [target.name]):
        reason = " ".join(reason.replace(str(folder), str(target)).split())
        raise BuildError(f"the model would not be served: {reason} (--no-load builds it unseen)")


def keep_users_files(folder: Path, target: Path) -> None:
    """Link the files that a user added to `target` into the new folder: another version, a
    client.py."""
    built = {RECORD, *read_record(target).get("files", ())}
    for path in target.rglob("*"):
        name = path.relative_to(target)
        if path.is_file() and str(name) not in built and not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(path, folder / name)


def publish(folder: Path, target: Path) -> None:
    """Rename the complete folder to `target`, and replace what `target` was."""
    old = target.with_name(f".old-{target.name}-{os.getpid()}")
    if target.exists():
        target.rename(old)
    try:
        folder.rename(target)
    except BaseException:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def reference_folder(source: str) -> Path:
    """Return the folder that keeps the fp32 model with this SHA-256."""
    return cache_folder() / "references" / source


def keep_reference(folder: Path) -> None:
    """Copy the folder's version 1, which is still in fp32."""
    target = reference_folder(digest(folder / "1" / "model.onnx"))
    if not target.is_dir():
        with scratch_folder(target.parent) as scratch:
            shutil.copytree(folder / "1", scratch, dirs_exist_ok=True)
            publish(scratch, target)


@dataclass(frozen=True)
class StoredModel:
    """`config` is the ModelConfig that this machine uses, read from `config_file`; `record` the
    build's build.json ({} without one)."""

    folder: Path
    config_file: Path
    config: Any
    model: Model
    record: dict[str, Any]

    @property
    def version(self) -> Path:
        """Return the folder of the newest version. Raise BuildError without one."""
        folders = versions(self.folder)
        if not folders:
            raise BuildError(f"there is no version in {self.folder}: build the model first")
        return folders[-1]

    @property
    def file(self) -> Path:
        """Return the file that is served from the newest version."""
        name = self.config.default_model_filename or MODEL_FILES.get(self.config.platform, "")
        path = self.version / name
        if not name or not path.is_file():
            raise BuildError(
                f"{self.folder.name} "
                f"({self.config.platform or self.config.backend or 'no platform'}) has no "
                f"model file that can be run here in {self.version}"
            )
        return path

    def client(self) -> ModelClient | None:
        """Return the model's client, if any. Raise BuildError if it cannot be made."""
        try:
            return make_client(self.model)
        except Exception as err:  # a client's code may raise anything
            raise BuildError(f"the client of {self.folder.name} cannot be made: {err}") from err


def open_model(name: str, repository: Path, config_name: str | None = None) -> StoredModel:
    """Return the model of that name. Raise BuildError if it does not exist or its configuration
    cannot be read.

    `config_name` is Triton's --model-config-name; None: "cpu" on a machine without a GPU.
    """
    if config_name is None:
        config_name = "" if this_gpu() else "cpu"
    folder = repository / name
    if not folder.is_dir():
        there = (
            sorted(path.name for path in repository.iterdir() if path.is_dir())
            if repository.is_dir()
            else []
        )
        raise BuildError(
            f"there is no model '{name}' in {repository}; there are: "
            f"{', '.join(n for n in there if not n.startswith('.')) or 'none'}"
        )
    file = config_file(folder, config_name)
    try:
        config = read_merged(folder, file)
    except Unreadable as err:
        raise BuildError(str(err)) from err
    if not file.is_file():
        raise BuildError(f"{folder} has no {CONFIG}")
    return StoredModel(
        folder=folder,
        config_file=file,
        config=config,
        model=describe_model(name, folder, config),
        record=read_record(folder),
    )
