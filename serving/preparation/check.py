"""What is wrong with the models, as far as it can be told without starting Triton: `serve --check`.

    config.pbtxt --protobuf--> configuration --files, backend, steps--> client --example--> tensors as Triton wants them

Every configuration is looked at, that of the other device too. It runs as
`python -m serving.preparation.check`, for PID 1 has the standard library only. The environment has the settings.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from clients.base import Model, ModelClient, Tensors, TensorSpec, read_labels
from serving.codecs import Limits
from serving.host import tritonserver
from serving.host.machine import memory_limit
from serving.inference.registry import describe_model, make_client
from serving.preparation.findings import Candidate, here, on_any_machine, onnx_files
from serving.preparation.onnx_versions import refusal
from serving.repository.engines import asked_of
from serving.repository.layout import CONFIG, config_file
from serving.repository.model_config import Unreadable, read_config, read_merged
from serving.served_model import ServedModel
from serving.settings.table import Settings
from serving.triton.tensors import numpy_dtype

LOAD_SHARE = 8  # of the memory: a larger file is not loaded to look at it


def main() -> int:
    settings = Settings.from_env(os.environ)
    if settings.multi_model:
        return _say(0, "nothing is wrong with the settings; archives are looked at when they are loaded")
    places = [repository / name for name in settings.load_models for repository in settings.model_repositories]
    folders = {path.name: path for path in places if path.is_dir()}
    findings = list(check_models(settings, folders))
    for finding in findings:
        _say(1, finding)
    return 1 if findings else _say(0, f"nothing is wrong with the settings and the models {', '.join(folders)}")


def check_models(settings: Settings, folders: Mapping[str, Path]) -> Iterator[str]:
    """All that is wrong with them, a model after the other."""
    found = list(check_files(settings, folders))
    yield from found
    for folder in folders.values():
        with suppress(Unreadable):
            file, config = config_file(folder, settings.device), read_config(folder, settings.device)
            candidate = Candidate(folder, file, config)
            wrong = list(here(candidate, settings))
            yield from wrong
            if not any(line.startswith(f"{folder.name}: ") for line in (*found, *wrong)):
                yield from _loads(candidate)


def _loads(candidate: Candidate) -> Iterator[str]:
    """Asks ONNX Runtime, where it is one of Python's; a load takes about twice the file in memory."""
    backend = tritonserver.backend_directory() / "onnxruntime" / "model.py"
    for file in onnx_files(candidate) if backend.is_file() else ():
        if file.stat().st_size < memory_limit() / LOAD_SHARE and (problem := refusal(file)):
            place = f"{file.parent.name}/{file.name}"
            yield candidate.found(problem, "export it again, with operators of ONNX itself", file=place)


def check_files(settings: Settings, folders: Mapping[str, Path]) -> Iterator[str]:
    """What is wrong with them on any machine."""
    parsed: dict[str, list[Candidate]] = {}
    for name, folder in folders.items():
        try:
            files = [folder / CONFIG, *sorted((folder / "configs").glob("*.pbtxt"))]
            parsed[name] = [Candidate(folder, file, read_merged(folder, file)) for file in files]
        except Unreadable as err:
            yield Candidate(folder, err.file, None).found(f"it cannot be read: {err.reason}", "correct it there")
    found = (_check(each, settings, parsed) for candidates in parsed.values() for each in candidates)
    yield from dict.fromkeys(chain.from_iterable(found))  # of a file each configuration says the same


def _check(candidate: Candidate, settings: Settings, parsed: Mapping[str, list[Candidate]]) -> Iterator[str]:
    config = candidate.config
    _, problem = _tried(lambda: asked_of(config))
    if problem:
        yield candidate.found(problem, "correct it there, or leave it out for ONNX Runtime")
    yield from on_any_machine(candidate, parsed)
    # without inputs and outputs Triton completes them, by the model's own file
    wrong = list(_check_client(candidate, settings)) if config.input and config.output else []
    yield from wrong or _check_label_files(candidate)  # the client says the same of its labels


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
    client, problem = _tried(lambda: make_client(model))
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
    tensors, problem = _tried(lambda: client.prepare([instance], client.defaults))
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
