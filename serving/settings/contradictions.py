"""Settings that are right one by one and wrong together."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from serving.settings.setting import format_port_range

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
