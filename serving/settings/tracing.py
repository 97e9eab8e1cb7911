"""OpenTelemetry's standard variables, as far as they say whether requests are traced; its own package reads the rest.

Whoever starts the container may set them for all programs of a machine, so none of them stops a start.
"""

from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "OTEL_EXPORTER_OTLP_"
ENDPOINTS = (f"{PREFIX}TRACES_ENDPOINT", f"{PREFIX}ENDPOINT")
PROTOCOLS = (f"{PREFIX}TRACES_PROTOCOL", f"{PREFIX}PROTOCOL")
HEADERS = (f"{PREFIX}TRACES_HEADERS", f"{PREFIX}HEADERS")  # which may hold a key
SPOKEN = "http/protobuf"


@dataclass(frozen=True)
class TraceSettings:
    """Whether requests are traced; `warning` says why not where it seems to be wanted; the collector asks for
    `headers`."""

    wanted: bool = False
    warning: str = ""
    headers: str = ""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "TraceSettings":
        def first(names: tuple[str, ...]) -> str:
            return next((text for name in names if (text := environ.get(name, "").strip())), "")

        disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        exporters = [name.strip() for name in environ.get("OTEL_TRACES_EXPORTER", "").split(",") if name.strip()]
        if disabled or exporters == ["none"] or not first(ENDPOINTS):
            return cls()
        if exporters not in ([], ["otlp"]):
            return cls(warning=f"OTEL_TRACES_EXPORTER={','.join(exporters)}: only otlp is there; {GOING_ON}")
        if (protocol := first(PROTOCOLS)) not in ("", SPOKEN):
            return cls(
                warning=f"OpenTelemetry's protocol is {protocol}: only {SPOKEN} is spoken (often port 4318); {GOING_ON}"
            )
        return cls(wanted=True, headers=first(HEADERS))


GOING_ON = "going on without traces"
NO_TRACES = TraceSettings()
