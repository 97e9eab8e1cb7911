"""What is wrong with a model, as its configuration and its folder say: a start looks at it before anything runs.

`serve --check` tells it too (check.py), with what takes more: the model's client, its example. So nothing is imported
here that takes time, as numpy does.
"""

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.host import tritonserver
from serving.named_value import nearest
from serving.preparation.model_files import file_findings
from serving.preparation.onnx_versions import too_new
from serving.repository.layout import CONFIG, FILES, PLATFORMS, WEIGHTS, config_file, versions
from serving.repository.model_config import ENSEMBLE, PLAN_REMEDIES, TENSORRT, ModelConfig, backend_of, configs_of_parts
from serving.settings.table import Settings

DALI_SOURCE = "dali.py"  # in place of model.dali: the pipeline's definition
OTHER_PLATFORMS = {ENSEMBLE, "torch_aoti"}  # of Triton, without a file that is known here
CONFIG_ENDINGS = {".yaml", ".yml", ".json", ".toml", ".txt", ".pbtext", ".prototxt", ".pb"}
NEEDS = {  # of the backends that are written in Python (backends/): a module, and what to do without it
    "onnxruntime": ("onnxruntime", "pip install onnxruntime"),
    "pytorch": ("torch", "pip install torch (a CPU build is enough without a GPU), or export the model to ONNX"),
    "openvino": ("openvino", "pip install --no-deps openvino, or serve the model as ONNX"),
    "dali": ("nvidia.dali", "pip install nvidia-dali-cuda120"),
}
ELSEWHERE = ("backend-directory", "model-control-mode", "model-repository")  # options that change what is loaded


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


def at_start(settings: Settings, models: Mapping[str, Path], configs: Mapping[str, Any]) -> tuple[str, ...]:
    """What no start can mend, of the models that it loads; none where options of tritonserver decide what is loaded."""
    if any(option in argument for option in ELSEWHERE for argument in settings.additional_arguments):
        return ()
    parsed = {
        name: [Candidate(folder, config_file(folder, settings.device), configs[name])]
        for name, folder in models.items()
    }
    found = (
        finding
        for (candidate,) in parsed.values()
        for finding in (*on_any_machine(candidate, parsed), *here(candidate, settings))
    )
    return tuple(dict.fromkeys(found))


def on_any_machine(candidate: Candidate, parsed: Mapping[str, list[Candidate]]) -> Iterator[str]:
    """Of one configuration; `parsed` has those of all models."""
    config, folder = candidate.config, candidate.folder
    if config.name and config.name != folder.name:
        yield candidate.found(f"it says name: '{config.name}'", f"leave it out, or name the folder {config.name}")
    yield from _config_file(candidate)
    yield from _platform(candidate)
    yield from _weights(candidate)
    yield from _steps(candidate, parsed)


def _config_file(candidate: Candidate) -> Iterator[str]:
    """Triton takes a model without a configuration; it is none that someone meant to write."""
    file = candidate.folder / CONFIG
    if candidate.file != file:
        return
    if file.is_file() and not candidate.config.ListFields():
        remedy = "write what it is to say, or remove it, and Triton completes one from the model's file"
        yield candidate.found("it is empty", remedy)
    for path in sorted(candidate.folder.glob("config.*")) if not file.is_file() else ():
        if path.suffix in CONFIG_ENDINGS:
            yield candidate.found("Triton does not read it", f"write a {CONFIG}", file=path.name)


def _platform(candidate: Candidate) -> Iterator[str]:
    word = candidate.config.platform
    if not word or candidate.config.backend or word in OTHER_PLATFORMS | PLATFORMS.keys():
        return
    like = next((name for name in PLATFORMS if word.lower() in name), nearest(word, PLATFORMS))
    remedy = f'say backend: "{word}"' if word in FILES and word != TENSORRT else f'say platform: "{like}"'
    yield candidate.found(f'there is no platform "{word}"', remedy if like or word in FILES else "; ".join(PLATFORMS))


def _weights(candidate: Candidate) -> Iterator[str]:
    if backend_of(candidate.config) == ENSEMBLE:
        return
    for version in _loaded_versions(candidate):
        if not version.is_dir():
            yield candidate.found(f"its version_policy names version {version.name}, which is not there", "add it")
            continue
        names = _expected_files(candidate.config)
        there = [version / name for name in names if (version / name).exists()]
        if names and not there:
            inside = ", ".join(sorted(path.name for path in version.iterdir())[:5]) or "nothing"
            yield candidate.found(f"found {inside}", f"lay {' or '.join(names)} there", file=version.name)
        for path in there[:1]:
            for what, remedy, whole in file_findings(path, candidate.config):
                yield candidate.found(what, remedy, file="" if whole else f"{version.name}/{path.name}")


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
        return (PLATFORMS[config.platform][1],)
    if config.backend == "dali":
        return (FILES["dali"], DALI_SOURCE)
    if config.backend:
        return (FILES[config.backend],) if config.backend in FILES else ()
    return () if config.platform else (*WEIGHTS, FILES["python"])


def _steps(candidate: Candidate, parsed: Mapping[str, list[Candidate]]) -> Iterator[str]:
    """Is an ensemble called one, do its steps not lead back to it, and do they name tensors that their models have?"""
    if backend_of(candidate.config) == ENSEMBLE and not candidate.config.platform:
        yield candidate.found("it has steps and no platform", 'say platform: "ensemble"')
    if circle := _circle(candidate, parsed):
        what = f"its steps lead back to itself ({', '.join(circle)})"
        yield candidate.found(what, "an ensemble calls models in one direction")
    for step in candidate.config.ensemble_scheduling.step:
        for part in parsed.get(step.model_name, [])[:1]:
            for way in ("input", "output"):
                names = [tensor.name for tensor in getattr(part.config, way)]
                for name in sorted(set(getattr(step, f"{way}_map")) - set(names)) if names else ():
                    what = f"its step '{step.model_name}' maps the {way} '{name}', which that model does not have"
                    yield candidate.found(what, f"it has {', '.join(names)}")


def _circle(candidate: Candidate, parsed: Mapping[str, list[Candidate]]) -> list[str]:
    """The models by which an ensemble calls itself, and itself."""
    configs = {name: found[0].config for name, found in parsed.items() if found}

    def called(config: Any) -> dict[str, Any]:
        return configs_of_parts(config, lambda name: configs.get(name, ModelConfig()))

    return [name for name, config in called(candidate.config).items() if candidate.folder.name in called(config)]


def here(candidate: Candidate, settings: Settings) -> Iterator[str]:
    """What only counts on this machine: backend and device."""
    if settings.device == "cpu" and backend_of(candidate.config) == TENSORRT:
        yield candidate.found("a TensorRT plan needs a GPU", PLAN_REMEDIES)
        return
    yield from _backend(candidate)
    gpu = any(group.kind == group.KIND_GPU for group in candidate.config.instance_group)
    if settings.device == "cpu" and gpu:
        remedy = "lay a configs/cpu.pbtxt beside it that says: instance_group { kind: KIND_CPU }"
        yield candidate.found("a model of kind KIND_GPU does not load on a machine without a GPU", remedy)


def _backend(candidate: Candidate) -> Iterator[str]:
    """Is it there, has it the library that it needs, and is it new enough for the model?"""
    directory, backend = tritonserver.backend_directory(), backend_of(candidate.config)
    if not directory.is_dir() or backend in ("", ENSEMBLE) or any(_platform(candidate)):
        return
    if any(candidate.folder.rglob(f"libtriton_{backend}.so")):  # a model may bring its own
        return
    if not (directory / backend).is_dir():
        names = sorted(path.name for path in directory.iterdir() if path.is_dir())
        like = next((name for name in names if backend.lower() in name), nearest(backend, names))
        remedy = f"install it, or use one of {', '.join(names)}" + (f'; did you mean "{like}"?' if like else "")
        yield candidate.found(f"there is no backend '{backend}' in {directory}", remedy)
    elif (directory / backend / "model.py").is_file() and backend in NEEDS:
        module, remedy = NEEDS[backend]
        if not _is_installed(module):
            yield candidate.found(f"the backend '{backend}' needs {module}, which is not installed here", remedy)
        elif backend == "onnxruntime":
            yield from _opsets(candidate)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package
        return False


def _opsets(candidate: Candidate) -> Iterator[str]:
    for file in onnx_files(candidate):
        if problem := too_new(file):
            remedy = "export it with an older one (opset_version=17 runs everywhere), or install a newer onnxruntime"
            yield candidate.found(problem, remedy, file=f"{file.parent.name}/{file.name}")


def onnx_files(candidate: Candidate) -> list[Path]:
    """Those that ONNX Runtime would load."""
    if backend_of(candidate.config) != "onnxruntime":
        return []
    name = candidate.config.default_model_filename or FILES["onnxruntime"]
    return [file for version in _loaded_versions(candidate) if (file := version / name).is_file()]
