"""A DALI pipeline in this process: from model.dali or dali.py, run on one batch, built again when it has died."""

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
    """`batch_size` samples at most at a time; `device` is a GPU's number, None for the processor."""

    def __init__(self, serialized: bytes, batch_size: int, threads: int, device: int | None) -> None:
        """ValueError where DALI cannot build the pipeline here."""
        self._serialized = serialized
        self._options = {"batch_size": batch_size, "num_threads": threads, "device_id": device}
        self._pipeline = self._build()

    def run(self, inputs: Mapping[str, Samples]) -> list[list[NDArray[Any]]]:
        """External source -> samples, whose shapes may differ; gives the samples of each output of the pipeline.

        InvalidInput with DALI's reason where it fails. A pipeline that has failed is of no more use.
        """
        try:
            for name, samples in inputs.items():
                self._pipeline.feed_input(name, list(samples))
            outputs = self._pipeline.run()
        except Exception as err:  # RuntimeError, ValueError, TypeError, as the operators have them
            self._pipeline = self._build()
            raise InvalidInput(f"DALI cannot process the input: {reason(str(err))}") from err
        return [list(_samples(output)) for output in outputs]

    def _build(self) -> Any:
        try:
            return dali.Pipeline.deserialize(self._serialized, **self._options)
        except Exception as err:
            raise ValueError(
                f"DALI cannot build the pipeline here: {reason(str(err))}; for the processor serialize it with "
                "device_id=None and operators of device='cpu'"
            ) from err


def _samples(output: Any) -> Iterator[NDArray[Any]]:
    """Copies: DALI uses the memory again."""
    on_processor = output.as_cpu()
    return (np.array(on_processor.at(index)) for index in range(len(on_processor)))


def serialized(folder: Path, filename: str, batch_size: int, threads: int, device: int | None) -> bytes:
    """The pipeline of a version's folder, as NVIDIA's backend finds it: the file, else dali.py's function that is
    marked with @autoserialize. FileNotFoundError, ValueError."""
    file, source = folder / (filename or SERIALIZED), folder / SOURCE
    if file.is_file():
        return file.read_bytes()
    if not source.is_file():
        raise FileNotFoundError(f"unable to find '{file}' or '{source}'")
    marked = [value for value in vars(_module(source)).values() if getattr(value, "_is_autoserialize", False)]
    if len(marked) != 1:
        raise ValueError(f"'{source}' has {len(marked)} pipelines with @autoserialize; exactly one is served")
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
    """DALI's message without the traceback of the pipeline's definition: the operator and what it met."""
    operator = re.search(r"operator `(?:nvidia\.dali\.)?([^`]+)`", message)
    met = re.search(r"encountered:\s*(.+?)\s*(?:Current pipeline object|$)", message, re.DOTALL)
    text = " ".join((met[1] if met else message).split())
    return f"{operator[1]}: {text}" if operator else text
