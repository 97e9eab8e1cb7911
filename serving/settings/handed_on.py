"""Variables of NVIDIA's image that only say what stands on tritonserver's command line: checked, and handed on.

`serve` reads them where it makes that command line (serving/supervisor/triton_options.py), and nobody else does.
"""

from dataclasses import dataclass
from typing import Any, Literal

from serving.settings import parsing
from serving.settings.setting import Setting

MEGABYTE = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class HandedOn(Setting):
    """`option` stands before the value; where it is given for `each` of something, {} in it is which one."""

    option: str
    each: Literal["server", "python backend", "tensorflow backend", "gpu"] = "server"


def _row(variable: str, option: str, **row: Any) -> HandedOn:
    return HandedOn(name=variable.lower(), variables=(f"SAGEMAKER_TRITON_{variable}",), option=option, **row)


HANDED_ON = (
    _row(
        "THREAD_COUNT",
        "--http-thread-count=",
        default=8,
        minimum=1,
        maximum=1024,
        help="threads of Triton's HTTP endpoint",
    ),
    _row(
        "BUFFER_MANAGER_THREAD_COUNT",
        "--buffer-manager-thread-count=",
        default=0,
        minimum=0,
        maximum=1024,
        help="threads with which Triton copies tensors",
    ),
    _row(
        "LOG_VERBOSE",
        "--log-verbose=",
        default=0,
        minimum=0,
        maximum=9,
        parser=parsing.parse_verbosity,
        form="true, false or a level",
        help="Triton's verbose log, many lines per request",
    ),
    _row(
        "LOG_INFO",
        "--log-info=",
        default="auto",
        parser=parsing.parse_switch,
        choices=("true", "false", "auto"),
        help="Triton's log of what it does; auto: as SERVE_LOG_LEVEL says",
    ),
    _row(
        "LOG_WARNING",
        "--log-warning=",
        default="auto",
        parser=parsing.parse_switch,
        choices=("true", "false", "auto"),
        help="Triton's log of warnings; auto: as SERVE_LOG_LEVEL says",
    ),
    _row("LOG_ERROR", "--log-error=", default=True, help="Triton's log of errors"),
    _row(
        "SHM_DEFAULT_BYTE_SIZE",
        "--backend-config={},shm-default-byte-size=",
        each="python backend",
        default=MEGABYTE,
        minimum=MEGABYTE,
        maximum=2**36,
        help="bytes of /dev/shm that an instance of a Python-based backend takes at its start (16777216 in NVIDIA's "
        "image)",
    ),
    _row(
        "SHM_GROWTH_BYTE_SIZE",
        "--backend-config={},shm-growth-byte-size=",
        each="python backend",
        default=MEGABYTE,
        minimum=4096,
        maximum=2**36,
        help="bytes by which that grows",
    ),
    _row(
        "TENSORFLOW_VERSION",
        "--backend-config={},version=",
        each="tensorflow backend",
        default=2,
        minimum=1,
        maximum=2,
        help="TensorFlow of Triton's C++ backend, where Triton has one (up to 25.02)",
    ),
    _row(
        "MODEL_LOAD_GPU_LIMIT",
        "--model-load-gpu-limit={}:",
        each="gpu",
        default=0.0,
        minimum=0,
        maximum=1,
        help="share of each GPU's memory above which no model is loaded any more; 0: no limit",
    ),
)
