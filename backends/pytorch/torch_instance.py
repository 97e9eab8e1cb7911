"""Runs one TorchScript module: converts requests to tensors, and results to responses. This module
imports PyTorch."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import instance  # Triton's stub puts this folder on its path
import naming
import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from batching import Array, Arrays, Batcher, merge_of, read_request, run_merged
from torch_settings import TorchSettings

SUPPORTED = "one dictionary of tensors, or tensors and lists of strings"


class TorchInstance:
    """Runs one TorchScript module. The constructor loads the file, and raises ValueError if
    config.pbtxt is invalid or does not match the module's forward()."""

    def __init__(self, config: instance.Config, args: instance.Texts) -> None:
        self.settings = TorchSettings.from_config(config)
        self.settings.apply()
        self.device = device_of(args)
        self.module = load(instance.model_file(args, config, "model.pt"), self.device)
        self._name_tensors(config)
        merge = merge_of(config)
        strings = {name for name, kind in self.datatypes.items() if kind == "TYPE_STRING"}
        read = partial(read_request, outputs=self.outputs, strings=strings)
        self.batcher = Batcher(read, partial(run_merged, self._run_model, merge), merge)
        pb_utils.Logger.log_info(f"{args['model_instance_name']}: {self.device}, {self.settings}")

    def _name_tensors(self, config: instance.Config) -> None:
        """Set `inputs`, `outputs` and `datatypes`. Raise ValueError if config.pbtxt is invalid or
        does not match the arguments of forward()."""
        naming.check(config)
        arguments = arguments_of(self.module)
        names = naming.input_names(config)
        # the position of each input among forward()'s arguments, or None if forward() takes a
        # dictionary
        self.inputs = None if arguments is None else naming.input_positions(names, arguments)
        self.outputs = naming.output_positions([entry["name"] for entry in config["output"]])
        self.datatypes = {
            entry["name"]: entry["data_type"] for entry in (*config["input"], *config["output"])
        }

    def _run_model(self, feed: Arrays, names: Sequence[str]) -> Arrays:
        """Run the module once on these inputs. Return the outputs with these names."""
        values = {name: self._to_value(array) for name, array in feed.items()}
        with self.settings.running():
            results = self._forward(values)
        arrays = {name: self._to_array(name, results) for name in names}
        if self.settings.cache_cleaning and self.device.type == "cuda":
            torch.cuda.empty_cache()
        return arrays

    def _forward(self, values: dict[str, Any]) -> Sequence[Any]:
        """Call forward() with the inputs, keyed by name. Return its results."""
        if self.inputs is None:
            result = self.module(values)
        else:
            names = sorted(values, key=self.inputs.__getitem__)
            result = self.module(*[values[name] for name in names])
        return result if isinstance(result, tuple) else (result,)

    def _to_value(self, array: Array) -> Any:
        """Convert an array to a tensor on the instance's device, or to a list of strings."""
        if array.dtype == np.object_:
            return array.tolist()
        return torch.from_numpy(array).to(self.device)

    def _to_array(self, name: str, results: Sequence[Any]) -> Array:
        """Return the output called `name` as an array. Raise ValueError if forward() did not return
        what config.pbtxt declares."""
        index = self.outputs[name]
        if index >= len(results):
            raise ValueError(
                f"output '{name}' is result {index} of the model, but the model returned "
                f"{len(results)}"
            )
        result = results[index]
        if isinstance(result, list) and all(isinstance(text, str) for text in result):
            return np.array([text.encode() for text in result], dtype=np.object_)
        if not isinstance(result, torch.Tensor):
            raise ValueError(
                f"output '{name}' is a {type(result).__name__}; it must be a tensor or a "
                "list of strings"
            )
        if not result.ndim:
            raise ValueError(f"output '{name}' is a scalar; scalars are not supported")
        # Copy the result, because the module may reuse its memory in the next run, before this
        # response has been sent.
        copied = result.clone(memory_format=torch.contiguous_format)
        array = copied.cpu().numpy()
        expected = pb_utils.triton_string_to_numpy(self.datatypes[name])
        if array.dtype != expected:
            raise ValueError(
                f"output '{name}' is {self.datatypes[name]} in the configuration, but the "
                f"model returns {array.dtype}"
            )
        return array


def device_of(args: instance.Texts) -> Any:
    """Return the instance's device. Raise ValueError if the instance is on a GPU and PyTorch cannot
    use it."""
    if args["model_instance_kind"] != "GPU":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(f"an instance is on a GPU, but PyTorch {torch.__version__} finds none")
    return torch.device("cuda", int(args["model_instance_device_id"]))


def arguments_of(module: Any) -> list[str] | None:
    """Return the names of forward()'s arguments, or None if its only argument is a dictionary of
    tensors. Raise ValueError if an argument has a type that is not supported."""
    arguments = module.forward.schema.arguments[1:]  # the first is self
    kinds = [argument.type.kind() for argument in arguments]
    if kinds == ["DictType"]:
        return None
    for argument, kind in zip(arguments, kinds, strict=True):
        if kind not in ("TensorType", "ListType"):
            raise ValueError(
                f"argument '{argument.name}' of the model's forward is {argument.type}; "
                f"supported: {SUPPORTED}"
            )
    return [argument.name for argument in arguments]


def load(path: Path, device: Any) -> Any:
    """Load a module, in the mode (training or evaluation) in which it was saved. Raise ValueError
    if the file is invalid, and FileNotFoundError if it is missing."""
    if not path.is_file():
        raise FileNotFoundError(f"unable to find '{path}'")
    try:
        return torch.jit.load(str(path), map_location=device)
    except Exception as err:  # a RuntimeError, or any error of the zip reader
        reason, *_ = str(err).split("\n")
        raise ValueError(
            f"PyTorch cannot load '{path}' as TorchScript: {reason}; "
            "write it with torch.jit.trace(…).save(…) or torch.jit.script(…).save(…)"
        ) from err
