"""Settings that are right one by one and wrong together."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from serving.settings.forms import format_port_range
from serving.settings.row import Setting

TRITON_PORTS = ("triton_http_port", "triton_grpc_port", "triton_sagemaker_port", "triton_metrics_port")
BATCH_MEGABYTES = 100  # of all requests that batch transform sends at once
OWN_OPTIONS = {  # of tritonserver, without which it could not be reached: option -> the variable that sets it
    "http-port": "SERVE_TRITON_HTTP_PORT",
    "http-address": "SERVE_HOST",
    "grpc-address": "SERVE_HOST",
    "grpc-port": "SAGEMAKER_TRITON_GRPC_PORT",
    "metrics-address": "SERVE_HOST",
    "metrics-port": "SAGEMAKER_TRITON_METRICS_PORT",
    "sagemaker-port": "SERVE_TRITON_SAGEMAKER_PORT",
    "model-repository": "SERVE_MODEL_REPOSITORY",
    "model-store": "SERVE_MODEL_REPOSITORY",
    "load-model": "SERVE_LOAD_MODELS",
    "model-config-name": "SERVE_DEVICE",
}


def contradictions(table: Sequence[Setting], values: Mapping[str, Any]) -> list[str]:
    """What is right by itself and wrong together."""
    return [
        *_secret_mistakes(values),
        *_port_mistakes(table, values),
        *_argument_mistakes(values),
        *_batch_mistakes(values),
    ]


def _port_mistakes(table: Sequence[Setting], values: Mapping[str, Any]) -> Iterator[str]:
    """Every port that is given must lie in the range, if there is one, and no two are the same."""
    allowed = values["safe_port_range"]
    rows = {row.name: row.variables[0] for row in table}
    outside = {"grpc_port": "triton_grpc_port", "metrics_port": "triton_metrics_port"}
    ours = {outer: inner for outer, inner in outside.items() if values[f"allow_{outer.removesuffix('_port')}"]}
    given = [n for n in (*TRITON_PORTS, *ours) if values[n] and n not in ours.values()]
    for name in given:
        if allowed and not allowed[0] <= values[name] <= allowed[1]:
            span = format_port_range(allowed)
            yield f"{rows[name]}={values[name]} is outside of SAGEMAKER_SAFE_PORT_RANGE={span}"
    for first, second in combinations(["port", *given], 2):
        if values[first] == values[second]:
            yield f"{rows[first]} and {rows[second]} are both {values[first]}: two servers cannot listen on one port"
    for outer, inner in ours.items():
        if values[inner] not in (0, values[outer]):
            both = f"{rows[inner]}={values[inner]} and {rows[outer]}={values[outer]}"
            yield f"{both} are the same port: set the latter only"


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
            yield f"SAGEMAKER_TRITON_ADDITIONAL_ARGS has --{name}, which serve sets: use {OWN_OPTIONS[name]}"


def _secret_mistakes(values: Mapping[str, Any]) -> list[str]:
    wants_secret = values["management"] == "secret"
    if wants_secret and not values["management_secret"]:
        return ["SERVE_MANAGEMENT=secret needs SERVE_MANAGEMENT_SECRET=HEADER=VALUE, which is not set"]
    if values["management_secret"] and not wants_secret:
        return [
            f"SERVE_MANAGEMENT_SECRET is set, but SERVE_MANAGEMENT={values['management']} does not ask for it: "
            "set SERVE_MANAGEMENT=secret"
        ]
    return []
