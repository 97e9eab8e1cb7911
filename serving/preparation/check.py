"""What is wrong with the models, as far as it can be told without starting Triton: `serve --check`.

    config.pbtxt --protobuf--> configuration --files, backend, steps--> client --example--> tensors as Triton wants them

Every configuration is looked at, that of the other device too. It runs as
`python -m serving.preparation.check`, for PID 1 has the standard library only. The environment has the settings.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.base import Model, ModelClient, Tensors, TensorSpec, read_labels
from serving.codecs import Limits
from serving.host import tritonserver
from serving.inference.registry import describe_model, make_client
from serving.repository.engines import asked_of
from serving.repository.layout import CONFIG, FILES, PLATFORMS, WEIGHTS, config_file, versions
from serving.repository.model_config import ENSEMBLE, Unreadable, backend_of, read_config, read_merged
from serving.repository.plans import OFF, Abilities, PlanModel, abilities, decide, plan_model
from serving.served_model import ServedModel
from serving.settings.table import Settings
from serving.triton.tensors import numpy_dtype

DALI_SOURCE = "dali.py"  # in place of model.dali: the pipeline's definition


@dataclass(frozen=True)
class Candidate:
    """A model and one of its configurations (the ModelConfig protobuf)."""

    folder: Path
    file: Path
    config: Any

    def found(self, what: str, remedy: str, file: str = "") -> str:
        """One mistake in a line: model, file, what is wrong, what to do."""
        place = file or self.file.relative_to(self.folder)
        return f"{self.folder.name}: {place}: {' '.join(what.split())}; {remedy}"


def main() -> int:
    settings = Settings.from_env(os.environ)
    if settings.multi_model:
        return _say(0, "nothing is wrong with the settings; archives are looked at when they are loaded")
    places = [repository / name for name in settings.load_models for repository in settings.model_repositories]
    folders = {path.name: path for path in places if path.is_dir()}
    for warning in filter(None, plan_warnings(settings, folders)):
        _say(0, f"WARNING: {warning}")
    findings = list(check_models(settings, folders))
    for finding in findings:
        _say(1, finding)
    return 1 if findings else _say(0, f"nothing is wrong with the settings and the models {', '.join(folders)}")


def plan_warnings(settings: Settings, folders: Mapping[str, Path]) -> Iterator[str]:
    """What a start would say of the TensorRT plans."""
    models = [model for folder in folders.values() if (model := _plan_model(folder, settings))]
    here = abilities(settings) if models else Abilities(gpu=False, hardware=None)
    for model in models:
        yield model.told(decide(model.versions(), here, settings.tensorrt))


def _plan_model(folder: Path, settings: Settings) -> PlanModel | None:
    with suppress(Unreadable):  # check_files says it
        return plan_model(folder, settings.device) if settings.tensorrt != OFF else None
    return None


def check_models(settings: Settings, folders: Mapping[str, Path]) -> Iterator[str]:
    """All that is wrong with them, a model after the other."""
    yield from check_files(settings, folders)
    for folder in folders.values():
        with suppress(Unreadable):
            file, config = config_file(folder, settings.device), read_config(folder, settings.device)
            yield from _check_here(Candidate(folder, file, config), settings)


def check_files(settings: Settings, folders: Mapping[str, Path]) -> Iterator[str]:
    """What is wrong with them on any machine."""
    parsed: dict[str, list[Candidate]] = {}
    for name, folder in folders.items():
        try:
            files = [folder / CONFIG, *sorted((folder / "configs").glob("*.pbtxt"))]
            parsed[name] = [Candidate(folder, file, read_merged(folder, file)) for file in files]
        except Unreadable as err:
            yield Candidate(folder, err.file, None).found(f"it cannot be read: {err.reason}", "correct it there")
    for candidates in parsed.values():
        for candidate in candidates:
            yield from _check(candidate, settings, parsed)


def _check(candidate: Candidate, settings: Settings, parsed: Mapping[str, list[Candidate]]) -> Iterator[str]:
    config, folder = candidate.config, candidate.folder
    if config.name and config.name != folder.name:
        yield candidate.found(f"it says name: '{config.name}'", f"leave it out, or name the folder {config.name}")
    _, problem = _tried(lambda: asked_of(config))
    if problem:
        yield candidate.found(problem, "correct it there, or leave it out for ONNX Runtime")
    yield from _check_weights(candidate)
    yield from _check_steps(candidate, parsed)
    # without inputs and outputs Triton completes them, by the model's own file
    wrong = list(_check_client(candidate, settings)) if config.input and config.output else []
    yield from wrong or _check_label_files(candidate)  # the client says the same of its labels


def _check_here(candidate: Candidate, settings: Settings) -> Iterator[str]:
    """What only counts on this machine: backend and device."""
    plans = _plan_model(candidate.folder, settings)
    if settings.device == "cpu" and plans and all((path / plans.onnx).is_file() for path in plans.loaded):
        return  # these are served instead
    directory, backend = tritonserver.backend_directory(), backend_of(candidate.config)
    if directory.is_dir() and backend not in ("", ENSEMBLE) and not (directory / backend).is_dir():
        there = ", ".join(sorted(path.name for path in directory.iterdir() if path.is_dir()))
        yield candidate.found(f"there is no backend '{backend}' in {directory}", f"install it, or use one of {there}")
    gpu = any(group.kind == group.KIND_GPU for group in candidate.config.instance_group)
    if settings.device == "cpu" and gpu:
        remedy = "lay a configs/cpu.pbtxt beside it that says: instance_group { kind: KIND_CPU }"
        yield candidate.found("a model of kind KIND_GPU does not load on a machine without a GPU", remedy)


def _check_weights(candidate: Candidate) -> Iterator[str]:
    if backend_of(candidate.config) == ENSEMBLE:
        return
    for version in _loaded_versions(candidate):
        if not version.is_dir():
            yield candidate.found(f"its version_policy names version {version.name}, which is not there", "add it")
            continue
        names = _expected_files(candidate.config)
        if names and not any((version / name).exists() for name in names):
            inside = ", ".join(sorted(path.name for path in version.iterdir())[:5]) or "nothing"
            yield candidate.found(f"found {inside}", f"lay {' or '.join(names)} there", file=version.name)
        for path in (version / name for name in names if name.endswith(".xml")):
            if path.is_file() and not (weights := path.with_suffix(".bin")).is_file():
                yield candidate.found(f"{path.name} is without its weights", f"lay {weights.name} there", version.name)


def _loaded_versions(candidate: Candidate) -> list[Path]:
    """Those that Triton loads: the latest one when config.pbtxt does not say."""
    policy, there = candidate.config.version_policy, versions(candidate.folder)
    if policy.WhichOneof("policy_choice") == "specific":
        return [candidate.folder / str(number) for number in policy.specific.versions]
    if policy.WhichOneof("policy_choice") == "all":
        return there
    return there[-max(1, policy.latest.num_versions) :]


def _expected_files(config: Any) -> tuple[str, ...]:
    """One of these must be there; none for a backend that nothing is known of."""
    if config.default_model_filename:
        return (config.default_model_filename,)
    if config.platform in PLATFORMS:
        backend, file = PLATFORMS[config.platform]
        return (file, "model.onnx") if backend == "tensorrt" else (file,)  # a plan is built from its ONNX file
    if config.backend == "dali":
        return (FILES["dali"], DALI_SOURCE)
    if config.backend:
        return (FILES[config.backend],) if config.backend in FILES else ()
    return () if config.platform else (*WEIGHTS, FILES["python"])


def _check_steps(candidate: Candidate, parsed: Mapping[str, list[Candidate]]) -> Iterator[str]:
    """Is an ensemble called one, and do its steps name tensors that their models have?"""
    if backend_of(candidate.config) == ENSEMBLE and not candidate.config.platform:
        yield candidate.found("it has steps and no platform", 'say platform: "ensemble"')
    for step in candidate.config.ensemble_scheduling.step:
        for part in parsed.get(step.model_name, [])[:1]:
            for way in ("input", "output"):
                names = [tensor.name for tensor in getattr(part.config, way)]
                for name in sorted(set(getattr(step, f"{way}_map")) - set(names)) if names else ():
                    what = f"its step '{step.model_name}' maps the {way} '{name}', which that model does not have"
                    yield candidate.found(what, f"it has {', '.join(names)}")


def _check_label_files(candidate: Candidate) -> Iterator[str]:
    for output in candidate.config.output:
        file = candidate.folder / output.label_filename
        if not output.label_filename:
            continue
        if not file.is_file():
            yield candidate.found(f"output '{output.name}' has its labels in {file.name}, which is not there", "add it")
        elif output.dims and output.dims[-1] not in (-1, count := len(read_labels(_model(candidate), file.name))):
            what = f"{count} labels for output '{output.name}' of {output.dims[-1]}"
            yield candidate.found(what, "one label a line", file=file.name)


def _model(candidate: Candidate) -> Model:
    return describe_model(candidate.folder.name, candidate.folder, candidate.config)


def _check_client(candidate: Candidate, settings: Settings) -> Iterator[str]:
    model = _model(candidate)
    own = "client.py" if (candidate.folder / "client.py").is_file() else ""
    client, problem = _tried(lambda: make_client(model, settings.model_clients))
    if problem:
        yield candidate.found(f"the client cannot be made: {problem}", "correct what it names", file=own)
    if client:
        yield from _check_example(candidate, client, Limits(settings.max_image_pixels), own)


def _check_example(candidate: Candidate, client: ModelClient, limits: Limits, own: str) -> Iterator[str]:
    """Is the example decoded, and does preprocess make of it what the model takes?"""
    file = next((path.name for path in sorted(candidate.folder.glob("example.*"))), own or "the client's example")
    instance, problem = _tried(lambda: client.codec.from_bytes(ServedModel(client.model, client).example(), limits))
    if problem:
        yield candidate.found(problem, f"it must be one instance: {client.codec.expected}", file=file)
        return
    tensors, problem = _tried(lambda: client.preprocess([instance]))
    if tensors is None:
        yield candidate.found(f"the client fails on it: {problem}", "correct the example or the client", file=file)
        return
    for spec in client.model.inputs:
        if wrong := _mismatch(spec, tensors):
            yield candidate.found(f"of {file} the client makes {wrong}", "correct config.pbtxt or the client", file=own)


def _mismatch(spec: TensorSpec, tensors: Tensors) -> str:
    """What is wrong with the tensor of one instance; "" when it fits the input."""
    if spec.name not in tensors:
        return "" if spec.optional else f"no tensor '{spec.name}', which is an input"
    array = tensors[spec.name]
    row = array.shape[1:]
    if len(row) != len(spec.shape) or any(want not in (-1, got) for want, got in zip(spec.shape, row, strict=True)):
        return f"'{spec.name}' {list(row)} where the input is {list(spec.shape)}"
    strings = spec.datatype == "BYTES" and array.dtype.kind in "OSU"
    if not strings and spec.datatype != "BF16" and array.dtype != numpy_dtype(spec.datatype):
        return f"'{spec.name}' of {array.dtype} where the input is {spec.datatype}"
    return ""


def _tried(call: Callable[[], Any]) -> tuple[Any, str]:
    """(what it gives, "") or (None, what went wrong): a client's code may raise anything."""
    try:
        return call(), ""
    except (Exception, SystemExit) as err:
        return None, f"{type(err).__name__}: {err}"


def _say(code: int, line: str) -> int:
    sys.stdout.write(line + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
