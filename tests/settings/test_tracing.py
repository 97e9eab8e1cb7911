"""OpenTelemetry's variables: when requests are traced."""

import pytest

from serving.settings.tracing import TraceSettings

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_EXPORTER": "otlp"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318"},
        ENDPOINT | {"OTEL_SDK_DISABLED": "True"},
        ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_an_endpoint_or_where_they_are_switched_off_there_are_no_traces(variables: dict[str, str]) -> None:
    assert TraceSettings.from_env(variables) == TraceSettings()


@pytest.mark.parametrize(
    "variables",
    [
        ENDPOINT,
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"},
        ENDPOINT | {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
        ENDPOINT | {"OTEL_SDK_DISABLED": "false", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
    ],
)
def test_an_endpoint_switches_traces_on(variables: dict[str, str]) -> None:
    assert TraceSettings.from_env(variables) == TraceSettings(wanted=True)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "protocol is grpc: only http/protobuf is spoken"),
        ({"OTEL_TRACES_EXPORTER": "zipkin,otlp"}, "OTEL_TRACES_EXPORTER=zipkin,otlp: only otlp"),
    ],
)
def test_what_cannot_be_done_is_a_warning_and_no_mistake(variables: dict[str, str], words: str) -> None:
    found = TraceSettings.from_env(ENDPOINT | variables)
    assert not found.wanted
    assert words in found.warning


def test_the_traces_own_headers_come_first() -> None:
    general = ENDPOINT | {"OTEL_EXPORTER_OTLP_HEADERS": "a=1"}
    assert TraceSettings.from_env(general).headers == "a=1"
    assert TraceSettings.from_env(general | {"OTEL_EXPORTER_OTLP_TRACES_HEADERS": "b=2"}).headers == "b=2"
