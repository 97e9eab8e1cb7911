"""Where tritonserver listens in this run: on the ports that the operator opened to others, else on free ones."""

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

from serving.host.ports import NoFreePort, PortPicker, why_taken
from serving.settings.parsing import format_port_range
from serving.settings.setting import SettingsError
from serving.settings.table import Settings
from serving.settings.triton_access import TritonAccess


@contextlib.contextmanager
def picked(settings: Settings) -> Iterator[TritonAccess]:
    """Reserves the ports meanwhile; SettingsError when there are too few, or one of the operator's is taken."""
    check_ports(settings)
    opened = {"grpc_port": settings.allow_grpc, "metrics_port": settings.allow_metrics}
    wanted = {"http_port": True, "sagemaker_port": settings.multi_model} | {name: not opened[name] for name in opened}
    names = [name for name, is_wanted in wanted.items() if is_wanted]
    ports: dict[str, Any] = {name: getattr(settings, name) for name in opened if opened[name]}
    picker = PortPicker(settings.safe_port_range, taken=[settings.port, *ports.values()])
    with contextlib.closing(picker):
        try:
            ports |= zip(names, picker.pick(len(names)), strict=True)
        except NoFreePort as err:
            allowed = format_port_range(settings.safe_port_range) or "(not set)"
            raise SettingsError([f"SAGEMAKER_SAFE_PORT_RANGE={allowed}: {err}"]) from err
        if settings.allow_grpc:
            ports |= {"grpc_host": settings.host, "secret": secrets.token_hex(16)}
        if settings.allow_metrics:
            ports |= {"metrics_host": settings.host}
        yield TritonAccess(**ports, shared_memory=f"serve-{secrets.token_hex(8)}")


def check_ports(settings: Settings) -> None:
    """Without this check nginx tries for seconds while another server answers /ping on its port; SettingsError."""
    listeners = {f"SERVE_HOST={settings.host} and PORT={settings.port}": settings.port}
    if settings.allow_grpc:
        listeners[f"SAGEMAKER_TRITON_GRPC_PORT={settings.grpc_port}"] = settings.grpc_port
    if settings.allow_metrics:
        listeners[f"SAGEMAKER_TRITON_METRICS_PORT={settings.metrics_port}"] = settings.metrics_port
    taken = {name: why for name, port in listeners.items() if (why := why_taken(settings.host, port))}
    if taken:
        raise SettingsError([f"{name}: cannot listen there: {why}" for name, why in taken.items()])
