"""Find mistakes in the models: `serve --check`, and what `build_engines` writes.

    config.pbtxt --protobuf--> configuration --client--> example --preprocess--> the tensors that the inputs take

Settings and layout are checked before. The configuration of the other device is checked too. Models without a mistake
are then loaded into a tritonserver, and asked their examples (trial_start.py). It runs as
`python -m serving.preparation.check`, because PID 1 has the standard library only; the environment has the settings.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from clients.base import ModelClient, Tensors, TensorSpec
from serving.codecs import Limits
from serving.inference.registry import describe_model, make_client
from serving.preparation.trial_start import failures
from serving.repository.layout import CONFIG
from serving.repository.model_config import Unreadable, read_merged
from serving.repository.own_packages import mistake_of_packages
from serving.served_model import ServedModel
from serving.settings.table import Settings
from serving.triton.tensors import numpy_dtype

LOAD = "load"  # the argument that also has the models loaded


def main() -> int:
    settings = Settings.from_env(os.environ)
    if settings.multi_model:
        return _say(0, "nothing is wrong with the settings; archives are checked when they are loaded")
    paths = [repository / name for name in settings.load_models for repository in settings.model_repositories]
    folders = {path.name: path for path in paths if path.is_dir()}
    findings = list(check_models(settings, folders))
    for finding in findings:
        _say(1, finding)
    mistaken = {finding.partition(": ")[0] for finding in findings}
    whole = [name for name in folders if name not in mistaken]
    failed = bool(whole) and LOAD in sys.argv[1:] and loads(settings, folders, whole)
    if findings or failed:
        return 1
    return _say(0, f"nothing is wrong with the settings and the models {', '.join(folders)}")


def loads(settings: Settings, folders: Mapping[str, Path], asked: Collection[str]) -> bool:
    """Load these models and ask their examples. Say what happened to each. Return whether one failed."""
    try:
        failed = dict(failures(settings, folders, asked))
    except FileNotFoundError as err:
        return bool(_say(0, f"the models were not loaded: {err}"))
    for name in asked:
        _say(0, f"{name}: {' '.join(failed[name].split())}" if name in failed else f"{name}: loads and answers")
    return bool(failed)


def check_models(settings: Settings, folders: Mapping[str, Path]) -> Iterator[str]:
    """Yield a line for each mistake: model, file, what is wrong."""
    for name, folder in folders.items():
        for file in (folder / CONFIG, *sorted((folder / "configs").glob("*.pbtxt"))):
            for mistake in _mistakes(name, folder, file, settings):
                yield f"{name}: {file.relative_to(folder)}: {' '.join(mistake.split())}"


def _mistakes(name: str, folder: Path, file: Path, settings: Settings) -> Iterator[str]:
    try:
        config = read_merged(folder, file)
    except Unreadable as err:
        yield f"it cannot be read: {err.reason}"
        return
    if mistake := mistake_of_packages(folder, config):
        yield mistake
    if not config.input or not config.output:  # Triton completes it from the model's file
        return
    model = describe_model(name, folder, config)
    client, problem = _tried(lambda: make_client(model))
    if problem:
        yield f"the client cannot be made: {problem}"
    if client:
        yield from _mistakes_of_example(folder, client, Limits(settings.max_image_pixels))


def _mistakes_of_example(folder: Path, client: ModelClient, limits: Limits) -> Iterator[str]:
    example = next((path.name for path in sorted(folder.glob("example.*"))), "the client's example")
    instance, problem = _tried(lambda: client.codec.from_bytes(ServedModel(client.model, client).example(), limits))
    if problem:
        yield f"{example} is not {client.codec.expected}: {problem}"
        return
    tensors, problem = _tried(lambda: client.prepare([instance], client.defaults))
    if tensors is None:
        yield f"the client fails on {example}: {problem}"
        return
    yield from (f"from {example} the client makes {wrong}" for wrong in _misfits(client.model.inputs, tensors))


def _misfits(inputs: tuple[TensorSpec, ...], tensors: Tensors) -> Iterator[str]:
    """Compare the tensors of one instance with the inputs of config.pbtxt."""
    for spec in inputs:
        if spec.name not in tensors:
            if not spec.optional:
                yield f"no tensor '{spec.name}', which is an input"
            continue
        array = tensors[spec.name]
        row = array.shape[1:]
        if len(row) != len(spec.shape) or any(size not in (-1, got) for size, got in zip(spec.shape, row, strict=True)):
            yield f"'{spec.name}' {list(row)}, and the input is {list(spec.shape)}"
            continue
        strings = spec.datatype == "BYTES" and array.dtype.kind in "OSU"
        if not strings and spec.datatype != "BF16" and array.dtype != numpy_dtype(spec.datatype):
            yield f"'{spec.name}' of {array.dtype}, and the input is {spec.datatype}"


def _tried(call: Callable[[], Any]) -> tuple[Any, str]:
    """Return (result, "") or (None, what went wrong): a client's code may raise anything."""
    try:
        return call(), ""
    except (Exception, SystemExit) as err:
        return None, f"{type(err).__name__}: {err}"


def _say(code: int, line: str) -> int:
    sys.stdout.write(line + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
