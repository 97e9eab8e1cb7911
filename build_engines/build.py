"""Builds one model in a scratch folder, which is renamed to the model's name when it is complete.

    weights -> fp32 model and ModelSpec -> engine -> config.pbtxt, configs/cpu.pbtxt, build.json
        -> checked -> published

A build that is interrupted or fails leaves the repository as it was.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from backends.onnxruntime.onnx_session import PARAMETERS as OF_ONNXRUNTIME
from backends.openvino.openvino_settings import READ as OF_OPENVINO
from backends.pytorch.naming import PARAMETERS as OF_PYTORCH
from build_engines import comparison
from build_engines.engines import onnx_runtime, tensorrt, trtexec
from build_engines.errors import BuildError, UsageError
from build_engines.families import (
    bert,
    bundled,
    efficientnet,
    image_folder,
    onnx_file,
    table,
    yolov4_tiny,
)
from build_engines.families.image_folder import is_image
from build_engines.families.text_folder import is_text
from build_engines.model_folder import (
    ONNX,
    Engine,
    ModelSpec,
    changed_files,
    check,
    difference,
    digest,
    keep_reference,
    keep_users_files,
    load,
    model_config,
    open_model,
    publish,
    read_record,
    reference_folder,
    render,
    scratch_folder,
    write_record,
)
from build_engines.request import Request
from build_engines.runners import onnx_runner, runner_of
from build_engines.weights import sources
from serving.clients import family
from serving.host.machine import has_gpu
from serving.named_value import unknown
from serving.repository.model_config import AUTO, OPENVINO, PARAMETER, PRECISION


def _yolov5(request: Request, path: Path | None, folder: Path) -> ModelSpec:
    from build_engines.families import yolov5  # needs torch

    return yolov5.export(request, path, folder)


FAMILIES: dict[str, Callable[[Request, Path | None, Path], ModelSpec]] = {
    "resnet": image_folder.export,
    "yolov5": _yolov5,
    "bert": bert.export,
    **dict.fromkeys(("image_embedding", "semantic_segmentation", "detr"), image_folder.export),
}
# Recipes whose own weights need another reader than their client's family.
OWN_WEIGHTS: dict[str, Callable[[Request, Path], ModelSpec]] = {
    "resnet": bundled.export,
    "yolov5": bundled.export,
    "efficientnet": efficientnet.export,
    "yolov4_tiny": yolov4_tiny.export,
}
# Clients whose models stay within comparison.py's limits in BF16: on CPUs with AMX, `serve` runs
# them on OpenVINO. Others compute in FP32 there unless --set names another PRECISION.
ANY_CPU_ENGINE = {"resnet", "yolov5", "bert"}
ENGINES: dict[str, Callable[[ModelSpec, Path, Request], Engine]] = {  # by target
    "cpu": onnx_runtime.for_cpu,
    "openvino": onnx_runtime.for_openvino,
    "gpu": onnx_runtime.for_gpu,
    "tensorrt": tensorrt.build,
}
ON_A_GPU = ("gpu", "tensorrt")  # targets
OF_BACKENDS = {*OF_ONNXRUNTIME, *OF_OPENVINO, *OF_PYTORCH, PARAMETER}
COMPARED = 64  # samples, at most
SESSION = "session."  # any of ONNX Runtime's own


def build(request: Request, force: bool = False) -> tuple[Path, bool]:
    """Return the model's folder, and whether it had to be built. Raise BuildError."""
    weights = sources.find(request)
    if table.is_table(request, weights):
        request = replace(request, target="cpu")  # no GPU computes its operators
    asked = made_from(request, weights)
    if not force and (there := _up_to_date(request, asked)):
        return there, False
    with scratch_folder(request.repository) as folder:
        model_spec = export(request, weights, folder)
        source = digest(folder / "1" / model_spec.file)
        if model_spec.platform == ONNX and request.precision != "fp32":
            keep_reference(folder)
        engine = ENGINES[request.target](model_spec, folder, request)
        write_configs(folder, model_spec, engine, request)
        write_record(folder, asked, source, engine)
        target = request.repository / (request.name or _usual_name(request, engine))
        check(folder, target.name)
        if request.compare and engine.precision == "int8" and engine.cpu_only:
            compare_with_fp32(folder, reference_folder(source) / "model.onnx", request)
        elif engine.precision == "int8":
            print(
                f"INT8 is not compared with fp32: do so with verify {target.name} --samples PATH",
                flush=True,
            )
        if request.load:
            load(folder, target)
            if request.target in ON_A_GPU and not has_gpu():
                print(
                    "loaded with its CPU configuration, because this machine has no GPU", flush=True
                )
        keep_users_files(folder, target)
        publish(folder, target)
    return target, True


def compare_with_fp32(folder: Path, reference: Path, request: Request) -> None:
    """Print how alike the answers of the engine and of fp32 are on samples that calibration did not
    see, or, without samples, on those of `verify`. Raise BuildError if a limit fails."""
    stored = open_model(folder.name, folder.parent, "")
    model, client = stored.model, stored.client()
    samples = request.calibration if model.parameters.get("client") in comparison.SAMPLED else None
    runners = runner_of(stored), onnx_runner(reference)
    for score in comparison.compare(model, client, *runners, COMPARED, samples, held_out=True):
        print(score, flush=True)
        if not score.passed:
            raise BuildError(
                f"INT8 does not answer as fp32 does: {score}; calibrate it with pictures or "
                "texts of the kind that it will get (--calibration), or build it all the "
                "same with --no-compare"
            )


def made_from(request: Request, weights: Path | None) -> dict[str, Any]:
    """Return everything that determines a build's result, without the paths of this machine."""
    asked = asdict(request)
    for field in ("repository", "name", "load", "calibration", "labels", "tokenizer", "data"):
        asked.pop(field)
    path = Path(request.weights).expanduser()
    asked["weights"] = path.name if request.weights and path.exists() else request.weights
    files = {
        "weights": weights,
        "labels": request.labels,
        "tokenizer": request.tokenizer,
        "data": request.data,
    }
    asked["sha256"] = {
        name: sources.identity(file) for name, file in files.items() if file and file.exists()
    }
    asked["calibration"] = request.calibration.name if request.calibration else ""
    if request.target == "tensorrt" and (bound := trtexec.bound_to()):
        asked["bound_to"] = bound
    return json.loads(json.dumps(asked))  # type: ignore[no-any-return]  # tuples become lists, as in build.json


def _up_to_date(request: Request, asked: Mapping[str, Any]) -> Path | None:
    """Return the folder with the same build if its files have not changed."""
    names = [request.name] if request.name else [request.model, f"{request.model}_int8"]
    for folder in (request.repository / name for name in names):
        record = read_record(folder)
        if record and record["made_from"] == asked and not changed_files(folder, record):
            return folder
    return None


def export(request: Request, weights: Path | None, folder: Path) -> ModelSpec:
    """Fill the folder with the fp32 model and its other files."""
    (folder / "1").mkdir(parents=True, exist_ok=True)
    if client := onnx_file.client_of(request):
        check_settings(client, request.settings)
    model_spec = _exported(request, weights, folder)
    check_settings(model_spec.client, request.settings)
    return replace(model_spec, settings={**model_spec.settings, **request.settings})


def _exported(request: Request, weights: Path | None, folder: Path) -> ModelSpec:
    """Export by the kind of the weights."""
    if weights and table.is_table(request, weights):
        return table.export(request, weights, folder)
    kind = sources.kind(weights) if weights else ""
    if weights and kind == "onnx":
        return onnx_file.export(request, weights, folder)
    if weights and kind == "torchscript":
        return onnx_file.export_torchscript(request, weights, folder)
    if weights is None and request.model in OWN_WEIGHTS:
        return OWN_WEIGHTS[request.model](request, folder)
    return FAMILIES[_family(request, weights, kind)](request, weights, folder)


def _family(request: Request, weights: Path | None, kind: str) -> str:
    """Return the client that serves these weights: that of the recipe or the flag, else the one
    that config.json names."""
    name = request.recipe.client if request.recipe else onnx_file.client_of(request)
    if not name and kind == "checkpoint" and weights:
        config = json.loads((weights / "config.json").read_text(encoding="utf-8"))
        name = str(config.get("model_type", ""))
        if name not in FAMILIES:
            name = "resnet" if is_image(weights) else "bert" if is_text(weights) else name
    if name not in FAMILIES and kind == "checkpoint":
        raise UsageError(
            f"{weights} ({name or 'no model_type in config.json'}) has neither a "
            "tokenizer's files nor preprocessor_config.json, so it is not known what it "
            "takes: save its tokenizer or image processor there too (save_pretrained), or "
            "export it to ONNX, of which any file is taken"
        )
    if kind == "tensors" and name != onnx_file.DETECTOR:
        raise UsageError(
            f"{weights} is a file of torch.save, of which only YOLOv5's is built (--client "
            "yolov5): where its code is, export the network, torch.onnx.export(network, "
            "example, 'model.onnx'), and build that"
        )
    return name


def check_settings(client: str, names: Iterable[str]) -> None:
    """Raise UsageError, with the nearest name, for a setting that neither the client nor a backend
    has."""
    own = (
        {each.name for each in (*family(client).settings, *family(client).parameters)}
        if client
        else set()
    )
    whose = f"the client '{client}'" if client else "a backend (name the --client for its own)"
    for name in names:
        if name not in own | OF_BACKENDS and not name.startswith(SESSION):
            raise UsageError(
                f"--set {name}: {unknown(f'setting of {whose}', name, own or OF_BACKENDS)}"
            )


def write_configs(folder: Path, model_spec: ModelSpec, engine: Engine, request: Request) -> None:
    """Write config.pbtxt for a GPU and configs/cpu.pbtxt for what differs without one.

    An engine for a CPU only has the first alone.
    """
    cpu = model_config(
        model_spec,
        platform=model_spec.platform,
        kind="KIND_CPU",
        count=model_spec.cpu_instances,
        request=request,
    )
    open_to_all = (
        {PARAMETER: AUTO}
        if model_spec.client in ANY_CPU_ENGINE and model_spec.platform == ONNX
        else {}
    )
    by_openvino = engine.cpu_parameters.get(PARAMETER) == OPENVINO and engine.precision == "fp32"
    in_fp32 = {PRECISION: "f32"} if by_openvino and not open_to_all else {}
    for name, value in (
        open_to_all | dict(engine.cpu_parameters) | in_fp32 | dict(model_spec.settings)
    ).items():
        cpu.parameters[name].string_value = value
    if engine.cpu_only:
        (folder / "config.pbtxt").write_text(render(cpu, model_spec.note))
        return
    gpu = model_config(
        model_spec, platform=engine.platform, kind="KIND_GPU", count=1, request=request
    )
    if gpu.HasField("dynamic_batching"):
        gpu.dynamic_batching.preferred_batch_size.extend(engine.preferred_batch_sizes)
    if engine.accelerator:
        accelerators = gpu.optimization.execution_accelerators.gpu_execution_accelerator
        accelerators.add(name="tensorrt", parameters=engine.accelerator)
    (folder / "config.pbtxt").write_text(render(gpu, model_spec.note))
    (folder / "configs").mkdir()
    (folder / "configs" / "cpu.pbtxt").write_text(render(difference(gpu, cpu)))


def _usual_name(request: Request, engine: Engine) -> str:
    """Return the model's name, followed by the precision of a CPU's engine that is not fp32: both
    can be served."""
    return (
        f"{request.model}_{engine.precision}"
        if engine.cpu_only and engine.precision != "fp32"
        else request.model
    )
