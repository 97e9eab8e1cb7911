"""One setting: its variables, how their text becomes a value, and how that is written back. Then the contradictions
between settings.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from serving.named_value import NamedValue

LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_SWITCH = {"1": "true", "yes": "true", "on": "true", "0": "false", "no": "false", "off": "false"}


def format_value(value: Any) -> str:
    """Return the text that is read as this value."""
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


class SettingsError(Exception):
    """Some values are wrong; `mistakes` has a line for each: variable, value and what is allowed."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True, kw_only=True)
class Setting(NamedValue):
    """The first of `variables` that is set and not empty counts; the first is the main one."""

    variables: tuple[str, ...]
    formatter: Callable[[Any], str] = format_value  # the parser's way back
    secret: bool = False  # its value is never shown

    def read(self, environ: Mapping[str, str]) -> Any:
        """Return the value. Raise ValueError that names variable, value and what is allowed."""
        for variable in self.variables:
            if text := environ.get(variable, "").strip():
                try:
                    return self.parse(text)
                except ValueError:
                    shown = "…" if self.secret else repr(text)
                    raise ValueError(f"{variable}={shown} is wrong: it must be {self.expected()}") from None
        return self.default


def parse_paths(text: str) -> tuple[Path, ...]:
    """Read PATH or PATH:PATH:…"""
    if not all(parts := [part.strip() for part in text.split(":")]):
        raise ValueError(text)
    return tuple(map(Path, parts))


def format_paths(paths: Iterable[Path]) -> str:
    return ":".join(map(str, paths))


def parse_port_range(text: str) -> tuple[int, ...]:
    """Read LOW-HIGH, both inclusive."""
    low, high = map(int, text.split("-"))
    if not 1 <= low <= high <= 65535:
        raise ValueError(text)
    return low, high


def format_port_range(allowed: Iterable[int]) -> str:
    return "-".join(map(str, allowed))


def parse_switch(text: str) -> str:
    """Read a word in any case, or one of bool's words."""
    return _SWITCH.get(text.lower(), text.lower())


def parse_verbosity(text: str) -> int:
    """Read a level, or true for 1 and false for 0."""
    return int({"true": "1", "false": "0"}.get(text.lower(), text))


def parse_log_level(text: str) -> str:
    """Read a name or a number of Python's logging; a number between two levels is the next one up."""
    if not text.isdecimal():
        return text.lower()
    return next((name for name, number in LOG_LEVELS.items() if int(text) <= number), text)


def parse_header_secret(text: str) -> str:
    """Read HEADER=VALUE, the value in characters that a header can carry."""
    if not re.fullmatch(r"[A-Za-z0-9-]+=[!-~]([ -~]*[!-~])?", text):
        raise ValueError(text)
    return text


def parse_arguments(text: str) -> tuple[str, ...]:
    """Read words as a shell splits them. Raise ValueError for a quotation that does not end."""
    return tuple(shlex.split(text))


BATCH_MEGABYTES = 100  # of all requests that batch transform sends at once
OWN_OPTIONS = {  # of tritonserver, without which it could not be reached: option -> the variable that sets it, if any
    "http-port": "",
    "http-address": "",
    "grpc-address": "SERVE_HOST",
    "grpc-port": "SAGEMAKER_TRITON_GRPC_PORT",
    "metrics-address": "SERVE_HOST",
    "metrics-port": "SAGEMAKER_TRITON_METRICS_PORT",
    "sagemaker-port": "",
    "model-repository": "SERVE_MODEL_REPOSITORY",
    "model-store": "SERVE_MODEL_REPOSITORY",
    "load-model": "SERVE_LOAD_MODELS",
    "model-config-name": "SERVE_DEVICE",
    "model-control-mode": "SERVE_LOAD_MODELS or SERVE_RELOAD",
}


def contradictions(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each contradiction."""
    mistakes = [*_port_mistakes(values), *_argument_mistakes(values)]
    payload, concurrency = values["batch_payload_mb"], values["batch_concurrency"]
    if payload * concurrency > BATCH_MEGABYTES:
        mistakes.append(
            f"SAGEMAKER_MAX_CONCURRENT_TRANSFORMS={concurrency} times SAGEMAKER_MAX_PAYLOAD_IN_MB={payload} is more "
            f"than the {BATCH_MEGABYTES} MB that batch transform sends at once"
        )
    if values["reload"] == "true" and (obstacle := obstacle_to_reload(values)):
        mistakes.append(f"SERVE_RELOAD=true does not work with {obstacle}: leave SERVE_RELOAD out")
    if values["kserve"] == "trusted" and values["multi_model"]:
        mistakes.append("SERVE_KSERVE=trusted does not work with SAGEMAKER_MULTI_MODEL=true: leave one of them out")
    return mistakes


def obstacle_to_reload(values: Mapping[str, Any]) -> str:
    """Return why model folders that change cannot be served, "" if they can."""
    if values["multi_model"]:
        return "SAGEMAKER_MULTI_MODEL=true, where POST /models loads and DELETE /models/NAME unloads archives"
    if values["kserve"] == "trusted":
        return "SERVE_KSERVE=trusted, with which callers reach Triton's models by their own names"
    return ""


def _port_mistakes(values: Mapping[str, Any]) -> Iterator[str]:
    """Every open port must lie in the range, if there is one, and no two are the same."""
    allowed = values["safe_port_range"]
    ports = {
        f"SAGEMAKER_TRITON_{name.upper()}_PORT": values[f"{name}_port"]
        for name in ("grpc", "metrics")
        if values[f"allow_{name}"]
    }
    for name, port in ports.items():
        if allowed and not allowed[0] <= port <= allowed[1]:
            yield f"{name}={port} is outside of SAGEMAKER_SAFE_PORT_RANGE={format_port_range(allowed)}"
    for (first, port), (second, other) in combinations([("SAGEMAKER_BIND_TO_PORT", values["port"]), *ports.items()], 2):
        if port == other:
            yield f"{first} and {second} are both {port}: two servers cannot listen on one port"


def _argument_mistakes(values: Mapping[str, Any]) -> Iterator[str]:
    for word in values["additional_arguments"]:
        name = word.removeprefix("--").partition("=")[0]
        if word.startswith("--") and name in OWN_OPTIONS:
            use = f": use {OWN_OPTIONS[name]}" if OWN_OPTIONS[name] else " by itself"
            yield f"SAGEMAKER_TRITON_ADDITIONAL_ARGS has --{name}, which serve sets{use}"
