"""Reads the `parameters` in config.pbtxt, which have the same names and meanings as in NVIDIA's
backend (pytorch_backend, README.md), and refuses those in UNSUPPORTED."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from instance import (
    Config,
    Texts,
    default_threads,
    parameter_texts,
    parse_bool,
    read_parameter,
    refuse_parameters,
)  # Triton's stub puts this folder on its path
from naming import UNSUPPORTED

ALLOWED = "true, false, 1, 0"
# Maps parameters to the functions of torch._C that set options of TorchScript's executor. Unless
# config.pbtxt sets them, the options have PyTorch's defaults.
SWITCHES = {
    "ENABLE_JIT_EXECUTOR": "_jit_set_profiling_executor",
    "ENABLE_JIT_PROFILING": "_jit_set_profiling_mode",
    "ENABLE_TENSOR_FUSER": "_jit_set_texpr_fuser_enabled",
}


@dataclass(frozen=True)
class TorchSettings:
    """The settings of an instance. The defaults are those of NVIDIA's backend, except that the
    number of threads follows from the container's processor limit."""

    inference_mode: bool = True
    optimized_execution: bool = True
    cache_cleaning: bool = False
    cudnn: bool = True
    intra_op_threads: int = 1
    inter_op_threads: int = 0
    switches: tuple[tuple[str, bool], ...] = ()

    @classmethod
    def from_config(cls, config: Config) -> "TorchSettings":
        """Read config.pbtxt. If a value is invalid, raise a ValueError that names the parameter and
        the allowed values."""
        parameters = parameter_texts(config)
        refuse_parameters(parameters, UNSUPPORTED)
        threads = _threads(parameters, "INTRA_OP_THREAD_COUNT")
        return cls(
            inference_mode=_boolean(parameters, "INFERENCE_MODE", True),
            optimized_execution=not _boolean(parameters, "DISABLE_OPTIMIZED_EXECUTION", False),
            cache_cleaning=_boolean(parameters, "ENABLE_CACHE_CLEANING", False),
            cudnn=not _boolean(parameters, "DISABLE_CUDNN", False),
            intra_op_threads=threads if threads > 0 else default_threads(),
            inter_op_threads=max(0, _threads(parameters, "INTER_OP_THREAD_COUNT")),
            switches=tuple(
                (name, _boolean(parameters, name, True)) for name in SWITCHES if name in parameters
            ),
        )

    def apply(self) -> None:
        """Apply the settings to this process, which serves only one instance. Call this before the
        first run."""
        torch.set_num_threads(self.intra_op_threads)
        if self.inter_op_threads:
            torch.set_num_interop_threads(self.inter_op_threads)
        torch.backends.cudnn.enabled = self.cudnn
        for name, value in self.switches:
            set_option = getattr(torch._C, SWITCHES[name])
            set_option(value)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Turn off gradients, and set the executor's optimization, in this context, which encloses
        a run."""
        without_gradients = torch.inference_mode() if self.inference_mode else torch.no_grad()
        with without_gradients, torch.jit.optimized_execution(self.optimized_execution):
            yield


def _boolean(parameters: Texts, name: str, default: bool) -> bool:
    return bool(read_parameter(parameters, name, parse_bool, default, ALLOWED))


def _threads(parameters: Texts, name: str) -> int:
    allowed = "a whole number; 0 or less: the default"
    return int(read_parameter(parameters, name, int, 0, allowed))
