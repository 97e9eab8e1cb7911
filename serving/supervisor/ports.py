"""Whether the ports that others reach can be had."""

from serving.host.ports import why_taken
from serving.settings.setting import SettingsError
from serving.settings.table import Settings


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
