"""Builds one model in a scratch folder, which is renamed to the model's name when it is complete.

    weights -> family -> fp32 model and ModelSpec -> engine -> config.pbtxt, configs/cpu.pbtxt
        -> build.json -> the user's files added -> checked -> compared -> loaded -> published

A build that fails or is interrupted leaves the models in the repository unchanged. A command
ignores interrupts while it publishes (__main__.ignore_signals). If it is killed then, see
publish.publish.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from build_engines.build_record import (
    changed_files,
    digest_of_version,
    read_record,
    reference_folder,
    write_record,
)
from build_engines.comparison import compare
from build_engines.config_pbtxt import write_configs
from build_engines.engines import onnx_runtime, tensorrt, trtexec
from build_engines.errors import BuildError
from build_engines.families.find_family import find_family
from build_engines.model_spec import ONNX, Engine, ModelSpec
from build_engines.publish import (
    add_users_files,
    check,
    keep_reference,
    publish,
    scratch_folder,
    try_in_tritonserver,
)
from build_engines.request import Request
from build_engines.runners import OnnxFile, runner_of
from build_engines.settings import check_settings
from build_engines.stored_model import open_model
from build_engines.weights import Weights, digest_of_path, find_weights

ENGINES: dict[str, Callable[[ModelSpec, Path, Request], Engine]] = {  # keyed by target
    "cpu": onnx_runtime.for_cpu,
    "openvino": onnx_runtime.for_openvino,
    "gpu": onnx_runtime.for_gpu,
    "tensorrt": tensorrt.build,
}
COMPARED = 64  # maximum number of samples on which a build compares INT8 with fp32


def build(
    request: Request, force: bool = False, before_publishing: Callable[[], None] = lambda: None
) -> tuple[Path, bool]:
    """Build the model unless it is up to date; with `force`, build it in any case. Return its
    folder, and whether it was built. Call `before_publishing` just before the folder is published.
    If the build fails, raise BuildError, OSError or, for a missing package, ModuleNotFoundError."""
    weights = find_weights(request)
    family = find_family(request, weights)
    if family.cpu_only:
        request = replace(request, target="cpu")
    made_from = _sources(request, weights)
    model_folder = request.model_folder
    if not force and _is_up_to_date(model_folder, made_from):
        return model_folder, False
    check_settings(family.client, request.settings)
    with scratch_folder(request.repository) as folder:
        model_spec = family.write_model(weights, request, folder)
        source_sha256 = digest_of_version(folder / "1")
        # `verify` needs the fp32 model. It accepts the one in the version's folder only if the
        # folder is unchanged, but INT8 overwrites the model, and TensorRT adds its plan.
        is_converted = request.precision != "fp32" or request.target == "tensorrt"
        if model_spec.platform == ONNX and is_converted:
            keep_reference(folder, source_sha256)
        engine = ENGINES[request.target](model_spec, folder, request)
        write_configs(folder, model_spec, engine, request, family.any_cpu_engine)
        write_record(folder, made_from, source_sha256, engine)
        # after write_record, which records every file in the folder as one that the build wrote
        add_users_files(folder, model_folder)
        check(folder, model_folder.name)
        if engine.precision == "int8" and request.compare and engine.runs_on_cpu:
            _compare_with_fp32(folder, source_sha256, request)
        elif engine.precision == "int8":
            verify = f"verify {model_folder.name} --samples PATH"
            print(f"INT8 was not compared with fp32; to do so: {verify}", flush=True)
        if request.load:
            try_in_tritonserver(folder, request)
        before_publishing()
        publish(folder, model_folder)
    return model_folder, True


def _compare_with_fp32(folder: Path, source_sha256: str, request: Request) -> None:
    """Compare INT8 with fp32 on the samples held out of --calibration or, without this flag, on the
    default samples of `compare`. Print the scores. Raise BuildError if one is too low."""
    # The scratch folder has the layout of a model folder, and its config.pbtxt is for a CPU.
    stored = open_model(folder.name, folder.parent, config_name="")
    scores = compare(
        stored.model,
        stored.client(),
        engine=runner_of(stored),
        reference=OnnxFile(reference_folder(source_sha256) / "model.onnx"),
        count=COMPARED,
        source=request.calibration,
        held_out=True,
    )
    for score in scores:
        print(score, flush=True)
        if not score.passed:
            raise BuildError(
                f"INT8's answers differ too much from fp32's: {score}; calibrate with images or "
                "texts like those that it will get (--calibration), or build it anyway with "
                "--no-compare"
            )


def _sources(request: Request, weights: Weights) -> dict[str, Any]:
    """Return the entry `made_from` of build.json: the inputs that cause a new build if they change.
    These are the request, with file names and digests instead of this machine's paths, and, for a
    TensorRT plan, the GPU and the version of TensorRT. Of --calibration, only the name of the
    folder or file is recorded, so changed samples do not cause a new build."""
    sources = asdict(request)
    for field in ("repository", "name", "load"):  # they do not change the result
        del sources[field]
    if request.weights and Path(request.weights).expanduser().exists():
        sources["weights"] = Path(request.weights).name
    sources["calibration"] = request.calibration.name if request.calibration else ""
    sources["sha256"] = dict(weights.digests)
    for flag in ("labels", "tokenizer"):
        if path := sources.pop(flag):
            sources["sha256"][flag] = digest_of_path(path)
    plan_bound_to = trtexec.bound_to() if request.target == "tensorrt" else {}
    if plan_bound_to:
        sources["bound_to"] = plan_bound_to
    as_read_back: dict[str, Any] = json.loads(json.dumps(sources))  # tuples become lists
    return as_read_back


def _is_up_to_date(model_folder: Path, made_from: Mapping[str, Any]) -> bool:
    """Return whether the folder was built from `made_from`, and still has the files that the build
    wrote, unchanged."""
    record = read_record(model_folder)
    return (
        bool(record)
        and record["made_from"] == made_from
        and not changed_files(model_folder, record)
    )
