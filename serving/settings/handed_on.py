"""Variables of NVIDIA's image that stand for an option of tritonserver or of the CloudWatch agent: they are checked and
handed on.

Only serving/supervisor/processes.py and processes.py read them, which make the command line and the agent's file.
"""

from dataclasses import dataclass
from typing import Any, Literal

from serving.settings.setting import Setting, parse_switch, parse_verbosity, row

MEGABYTE = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class HandedOn(Setting):
    """`option` stands before the value; where it is given for `each` of something, {} in it is which one."""

    option: str
    each: Literal["server", "python backend", "tensorflow backend", "gpu"] = "server"


def _row(variable: str, option: str, default: Any, meaning: str, **more: Any) -> HandedOn:
    variables = (f"SAGEMAKER_TRITON_{variable}",)
    return HandedOn(name=variable.lower(), variables=variables, option=option, **row(default, meaning, **more))


LOG: dict[str, Any] = {"parser": parse_switch, "choices": ("true", "false", "auto")}
VERBOSITY: dict[str, Any] = {"parser": parse_verbosity, "form": "true, false or a level"}
SHM: dict[str, Any] = {"each": "python backend"}
# fmt: off
HANDED_ON = (
    _row("THREAD_COUNT", "--http-thread-count=", 8, "threads of Triton's HTTP endpoint", within=(1, 1024)),
    _row("BUFFER_MANAGER_THREAD_COUNT", "--buffer-manager-thread-count=", 0, within=(0, 1024),
        meaning="threads with which Triton copies tensors"),
    _row("LOG_VERBOSE", "--log-verbose=", 0, "Triton's log of each request", within=(0, 9), **VERBOSITY),
    _row("LOG_INFO", "--log-info=", "auto", "Triton's log of what it does; auto: as SERVE_LOG_LEVEL says", **LOG),
    _row("LOG_WARNING", "--log-warning=", "auto", "Triton's log of warnings; auto: as SERVE_LOG_LEVEL says", **LOG),
    _row("LOG_ERROR", "--log-error=", True, "Triton's log of errors"),
    _row("SHM_DEFAULT_BYTE_SIZE", "--backend-config={},shm-default-byte-size=", MEGABYTE, **SHM,
        within=(MEGABYTE, 2**36), meaning="bytes of /dev/shm that an instance of a Python-based backend takes at its "
                                          "start (16777216 in NVIDIA's image)"),
    _row("SHM_GROWTH_BYTE_SIZE", "--backend-config={},shm-growth-byte-size=", MEGABYTE, within=(4096, 2**36), **SHM,
        meaning="bytes by which that grows"),
    _row("TENSORFLOW_VERSION", "--backend-config={},version=", 2, within=(1, 2), each="tensorflow backend",
        meaning="TensorFlow of Triton's C++ backend, where Triton has one (up to 25.02)"),
    _row("MODEL_LOAD_GPU_LIMIT", "--model-load-gpu-limit={}:", 0.0, within=(0, 1), each="gpu",
        meaning="share of each GPU's memory above which no model is loaded any more; 0: no limit"),
)
# fmt: on


def _agent_row(variable: str, meaning: str) -> Setting:
    variables = (f"SAGEMAKER_TRITON_CLOUDWATCH_{variable}",)
    return Setting(name=f"cloudwatch_{variable.lower()}", variables=variables, **row("/aws/sagemaker/triton", meaning))


LOG_GROUP = _agent_row("LOG_GROUP", "CloudWatch's log group for the metrics")
METRIC_NAMESPACE = _agent_row("METRIC_NAMESPACE", "CloudWatch's namespace of the metrics")
TO_CLOUDWATCH = (LOG_GROUP, METRIC_NAMESPACE)
