"""One model from beginning to end: in a folder beside its place, renamed when it is complete.

    weights -> fp32 model and ModelSpec -> engine -> config.pbtxt, configs/cpu.pbtxt, build.json -> checked -> published

A build that is interrupted or fails leaves the repository as it was.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from build_engines.building.provenance import made_from, up_to_date
from build_engines.building.references import keep_reference
from build_engines.building.settings import check_settings
from build_engines.demos import resnet as demo_resnet
from build_engines.demos import yolov5 as demo_yolov5
from build_engines.engines import measured, onnx_runtime, onnx_tensorrt, openvino_runtime, tensorrt
from build_engines.errors import UsageError
from build_engines.families import (
    bert,
    efficientnet,
    image_folder,
    onnx_file,
    resnet,
    table,
    torchscript_file,
    yolov4_tiny,
    yolov5,
)
from build_engines.families.image_folder import is_image
from build_engines.families.text_folder import is_text
from build_engines.model_folder.config import difference, model_config, render
from build_engines.model_folder.publish import check, keep_users_files, publish, scratch_folder
from build_engines.model_folder.record import write_record
from build_engines.model_folder.spec import ONNX, Engine, ModelSpec
from build_engines.request import Request, ServingOptions
from build_engines.weights import sources
from build_engines.weights.digests import digest
from serving.repository.engines import AUTO, PARAMETER

FAMILIES: dict[str, Callable[[Request, Path | None, Path], ModelSpec]] = {
    "resnet": resnet.export,
    "yolov5": yolov5.export,
    "bert": bert.export,
    **dict.fromkeys(("image_embedding", "semantic_segmentation", "detr"), image_folder.export),
}
# The recipes whose own weights are not those of their client's family.
OWN_WEIGHTS: dict[str, Callable[[Request, Path], ModelSpec]] = {
    "resnet": demo_resnet.export,
    "yolov5": demo_yolov5.export,
    "efficientnet": efficientnet.export,
    "yolov4_tiny": yolov4_tiny.export,
}
# Clients of models that answer as well in BF16, by comparison.py's limits: with AMX, `serve` takes OpenVINO for them.
ANY_CPU_ENGINE = {"resnet", "yolov5", "bert"}
ENGINES = {  # by target
    "cpu": onnx_runtime,
    "openvino": openvino_runtime,
    "gpu": onnx_tensorrt,
    "tensorrt": tensorrt,
    "auto": measured,
}


def build(request: Request, force: bool = False) -> tuple[Path, bool]:
    """The model's folder, and whether it had to be made; BuildError."""
    weights = sources.find(request)
    if table.is_table(request, weights):
        request = replace(request, target="cpu")  # no GPU computes its operators
    engine_builder = ENGINES[request.target]
    asked = made_from(request, weights, engine_builder.bound_to())
    if not force and (there := up_to_date(request, asked)):
        return there, False
    with scratch_folder(request.repository) as folder:
        model_spec = export(request, weights, folder)
        source = digest(folder / "1" / model_spec.file)
        if model_spec.platform == ONNX and request.precision != "fp32":
            keep_reference(folder)
        engine = engine_builder.build(model_spec, folder, request)
        write_configs(folder, model_spec, engine, request.serving)
        write_record(folder, asked, source, engine)
        check(folder)
        target = request.repository / (request.name or _usual_name(request, engine))
        keep_users_files(folder, target)
        publish(folder, target)
    return target, True


def export(request: Request, weights: Path | None, folder: Path) -> ModelSpec:
    """Fills the folder with the fp32 model and what belongs to it."""
    (folder / "1").mkdir(parents=True, exist_ok=True)
    if client := onnx_file.client_of(request):
        check_settings(client, request.settings)
    model_spec = _exported(request, weights, folder)
    check_settings(model_spec.client, request.settings)
    return replace(model_spec, settings={**model_spec.settings, **request.settings})


def _exported(request: Request, weights: Path | None, folder: Path) -> ModelSpec:
    """By what the weights are."""
    if weights and table.is_table(request, weights):
        return table.export(request, weights, folder)
    kind = sources.kind(weights) if weights else ""
    if weights and kind == "onnx":
        return onnx_file.export(request, weights, folder)
    if weights and kind == "torchscript":
        return torchscript_file.export(request, weights, folder)
    if weights is None and request.model in OWN_WEIGHTS:
        return OWN_WEIGHTS[request.model](request, folder)
    return FAMILIES[_family(request, weights, kind)](request, weights, folder)


def _family(request: Request, weights: Path | None, kind: str) -> str:
    """Whose weights these are: the recipe's or the flag's client, else the one that config.json names."""
    name = request.recipe.client if request.recipe else onnx_file.client_of(request)
    if not name and kind == "checkpoint" and weights:
        config = json.loads((weights / "config.json").read_text(encoding="utf-8"))
        name = str(config.get("model_type", ""))
        if name not in FAMILIES:
            name = "resnet" if is_image(weights) else "bert" if is_text(weights) else name
    if name not in FAMILIES and kind == "checkpoint":
        raise UsageError(
            f"{weights} ({name or 'no model_type in config.json'}) has neither a tokenizer's files nor "
            "preprocessor_config.json, so it is not known what it takes: save its tokenizer or image processor "
            "there too (save_pretrained), or export it to ONNX, of which any file is taken"
        )
    if name not in FAMILIES:
        raise UsageError(
            f"it is not known what {weights} is ({name or 'no client is named'}): add --client, one of "
            f"{', '.join(FAMILIES)}, or bring it as an ONNX file, of which any is taken"
        )
    return name


def write_configs(folder: Path, model_spec: ModelSpec, engine: Engine, serving: ServingOptions) -> None:
    """config.pbtxt for a GPU, configs/cpu.pbtxt for what differs without one; an engine for a CPU has the first."""
    if not serving.preferred_batch_sizes:
        serving = replace(serving, preferred_batch_sizes=engine.preferred_batch_sizes)
    cpu = model_config(
        model_spec, platform=model_spec.platform, kind="KIND_CPU", count=model_spec.cpu_instances, serving=serving
    )
    open_to_all = {PARAMETER: AUTO} if model_spec.client in ANY_CPU_ENGINE and model_spec.platform == ONNX else {}
    for name, value in (open_to_all | dict(engine.cpu_parameters) | dict(model_spec.settings)).items():
        cpu.parameters[name].string_value = value
    if engine.cpu_only:
        (folder / "config.pbtxt").write_text(render(cpu, model_spec.note))
        return
    gpu = model_config(model_spec, platform=engine.platform, kind="KIND_GPU", count=1, serving=serving)
    if engine.accelerator:
        accelerators = gpu.optimization.execution_accelerators.gpu_execution_accelerator
        accelerators.add(name="tensorrt", parameters=engine.accelerator)
    (folder / "config.pbtxt").write_text(render(gpu, model_spec.note))
    (folder / "configs").mkdir()
    (folder / "configs" / "cpu.pbtxt").write_text(render(difference(gpu, cpu)))


def _usual_name(request: Request, engine: Engine) -> str:
    """The model's, with the precision behind it where a CPU's engine is not fp32: both can be served side by side."""
    return f"{request.model}_{engine.precision}" if engine.cpu_only and engine.precision != "fp32" else request.model
