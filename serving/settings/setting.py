"""One setting: the variables that it is read from, how its text becomes a value and how that is written back. And the
mistakes of settings that are right one by one and wrong together.
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
    """A number, a word, a path or true and false; as short as it can be read back."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def row(
    default: Any, meaning: str, within: tuple[float | None, float | None] = (None, None), **more: Any
) -> dict[str, Any]:
    """A Setting's columns: `within` are the least and the most that it may be."""
    return {"default": default, "help": meaning, "minimum": within[0], "maximum": within[1], **more}


class SettingsError(Exception):
    """One or more wrong values; `mistakes` has a line for each: variable, value and what is allowed."""

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
        """The value; raises ValueError that names variable, value and what is allowed."""
        for variable in self.variables:
            if text := environ.get(variable, "").strip():
                try:
                    return self.parse(text)
                except ValueError:
                    shown = "…" if self.secret else repr(text)
                    raise ValueError(f"{variable}={shown} is wrong: it must be {self.expected()}") from None
        return self.default

    def format(self, value: Any) -> str:
        """The text that is read as this value."""
        return self.formatter(value)


def parse_paths(text: str) -> tuple[Path, ...]:
    """PATH or PATH:PATH:…"""
    if not all(parts := [part.strip() for part in text.split(":")]):
        raise ValueError(text)
    return tuple(map(Path, parts))


def format_paths(paths: Iterable[Path]) -> str:
    return ":".join(map(str, paths))


def parse_names(text: str) -> tuple[str, ...]:
    """NAME or NAME,NAME,…"""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_port_range(text: str) -> tuple[int, ...]:
    """LOW-HIGH, both inclusive."""
    found = re.fullmatch(r"(\d{1,5})\s*-\s*(\d{1,5})", text)
    low, high = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= low <= high <= 65535:
        raise ValueError(text)
    return low, high


def format_port_range(allowed: Iterable[int]) -> str:
    return "-".join(map(str, allowed))


def parse_switch(text: str) -> str:
    """true, false or auto."""
    return _SWITCH.get(text.lower(), text.lower())


def parse_verbosity(text: str) -> int:
    """A level, or true for 1 and false for 0."""
    words = {"true": 1, "false": 0}
    return words[text.lower()] if text.lower() in words else int(text)


def parse_log_level(text: str) -> str:
    """A name or a number as Python's logging has it; a number between two levels is the next one up."""
    if not text.isdecimal():
        return text.lower()
    return next((name for name, number in LOG_LEVELS.items() if int(text) <= number), text)


def parse_header_secret(text: str) -> str:
    """HEADER=VALUE, the value in characters that a header can carry."""
    if not re.fullmatch(r"[A-Za-z0-9-]+=[!-~]([ -~]*[!-~])?", text):
        raise ValueError(text)
    return text


def parse_arguments(text: str) -> tuple[str, ...]:
    """Words as a shell splits them; ValueError for a quotation that does not end."""
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
    """A line for each."""
    found = [*_port_mistakes(values), *_argument_mistakes(values), *_batch_mistakes(values)]
    if values["reload"] == "true" and (obstacle := obstacle_to_reload(values)):
        found.append(f"SERVE_RELOAD=true does not go with {obstacle}: leave SERVE_RELOAD out")
    if values["kserve"] == "trusted" and values["multi_model"]:
        found.append("SERVE_KSERVE=trusted does not work with SAGEMAKER_MULTI_MODEL=true: leave one of them out")
    return found


def obstacle_to_reload(values: Mapping[str, Any]) -> str:
    """Why model folders that change cannot be served; "" where they can."""
    if values["multi_model"]:
        return "SAGEMAKER_MULTI_MODEL=true, where POST /models loads and DELETE /models/NAME unloads archives"
    if values["kserve"] == "trusted":
        return "SERVE_KSERVE=trusted, with which callers reach Triton's models by their own names"
    return ""


def _port_mistakes(values: Mapping[str, Any]) -> Iterator[str]:
    """Every port that is given must lie in the range, if there is one, and no two are the same."""
    allowed = values["safe_port_range"]
    exposed = [name for name in ("grpc", "metrics") if values[f"allow_{name}"]]
    ports = {f"SAGEMAKER_TRITON_{name.upper()}_PORT": values[f"{name}_port"] for name in exposed}
    for name, port in ports.items():
        if allowed and not allowed[0] <= port <= allowed[1]:
            yield f"{name}={port} is outside of SAGEMAKER_SAFE_PORT_RANGE={format_port_range(allowed)}"
    for (first, port), (second, other) in combinations([("SAGEMAKER_BIND_TO_PORT", values["port"]), *ports.items()], 2):
        if port == other:
            yield f"{first} and {second} are both {port}: two servers cannot listen on one port"


def _batch_mistakes(values: Mapping[str, Any]) -> Iterator[str]:
    payload, concurrency = values["batch_payload_mb"], values["batch_concurrency"]
    if payload * concurrency > BATCH_MEGABYTES:
        yield (
            f"SAGEMAKER_MAX_CONCURRENT_TRANSFORMS={concurrency} times SAGEMAKER_MAX_PAYLOAD_IN_MB={payload} is more "
            f"than the {BATCH_MEGABYTES} MB that batch transform sends at once"
        )


def _argument_mistakes(values: Mapping[str, Any]) -> Iterator[str]:
    for word in values["additional_arguments"]:
        name = word.removeprefix("--").partition("=")[0]
        if word.startswith("--") and name in OWN_OPTIONS:
            use = f": use {OWN_OPTIONS[name]}" if OWN_OPTIONS[name] else " by itself"
            yield f"SAGEMAKER_TRITON_ADDITIONAL_ARGS has --{name}, which serve sets{use}"
