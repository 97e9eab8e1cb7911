"""A DALI pipeline in this process: read from model.dali or dali.py, run on one batch, rebuilt after
a failure."""

import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from batching import InvalidInput  # type: ignore[import-not-found]  # Triton's stub puts this folder on its path
from numpy.typing import NDArray
from nvidia import dali

SERIALIZED, SOURCE = "model.dali", "dali.py"
Samples = Sequence[NDArray[Any]]


class Runner:
    """Runs a pipeline on at most `batch_size` samples; `device` is a GPU's number, or None for the
    CPU."""

    def __init__(
        self, serialized: bytes, batch_size: int, threads: int, device: int | None
    ) -> None:
        """Raise ValueError if DALI cannot build the pipeline on this machine."""
        self._serialized = serialized
        self._options = {"batch_size": batch_size, "num_threads": threads, "device_id": device}
        self._pipeline = self._build()

    def run(self, inputs: Mapping[str, Samples]) -> list[list[NDArray[Any]]]:
        """Run {external source: samples}. Return the samples of each output; their shapes may
        differ.

        Raise InvalidInput with DALI's reason if it fails. A failed pipeline cannot run again, so it
        is rebuilt.
        """
        try:
            for name, samples in inputs.items():
                self._pipeline.feed_input(name, list(samples))
            outputs = self._pipeline.run()
        except Exception as err:  # RuntimeError, ValueError or TypeError, depending on the operator
            self._pipeline = self._build()
            raise InvalidInput(f"DALI cannot process the input: {reason(str(err))}") from err
        return [list(_samples(output)) for output in outputs]

    def _build(self) -> Any:
        try:
            return dali.Pipeline.deserialize(self._serialized, **self._options)
        except Exception as err:
            raise ValueError(
                f"DALI cannot build the pipeline here: {reason(str(err))}; for a CPU, "
                "serialize it with device_id=None and operators with device='cpu'"
            ) from err


def _samples(output: Any) -> Iterator[NDArray[Any]]:
    """Copy the samples, because DALI reuses its memory."""
    on_processor = output.as_cpu()
    return (np.array(on_processor.at(index)) for index in range(len(on_processor)))


def serialized(
    folder: Path, filename: str, batch_size: int, threads: int, device: int | None
) -> bytes:
    """Return the serialized pipeline of a version's folder. Like NVIDIA's backend, take the file,
    else the function in dali.py with @autoserialize. Raise FileNotFoundError, ValueError."""
    file, source = folder / (filename or SERIALIZED), folder / SOURCE
    if file.is_file():
        return file.read_bytes()
    if not source.is_file():
        raise FileNotFoundError(f"unable to find '{file}' or '{source}'")
    marked = [
        value
        for value in vars(_module(source)).values()
        if getattr(value, "_is_autoserialize", False)
    ]
    if len(marked) != 1:
        raise ValueError(
            f"'{source}' has {len(marked)} pipelines with @autoserialize; it must have exactly one"
        )
    pipeline = marked[0](batch_size=batch_size, num_threads=threads, device_id=device)
    content: bytes = pipeline.serialize()
    return content


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("dali_pipeline_source", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"'{path}' cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reason(message: str) -> str:
    """Return DALI's message without the traceback of the pipeline's definition: the operator and
    its error."""
    operator = re.search(r"operator `(?:nvidia\.dali\.)?([^`]+)`", message)
    met = re.search(r"encountered:\s*(.+?)\s*(?:Current pipeline object|$)", message, re.DOTALL)
    text = " ".join((met[1] if met else message).split())
    return f"{operator[1]}: {text}" if operator else text
