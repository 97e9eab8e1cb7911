"""A model compiled by OpenVINO for a device, or taken from the cache. Needs OpenVINO."""

import time
from typing import Any

import openvino
import openvino_cache  # type: ignore[import-not-found]  # Triton's stub puts this folder on its path
from openvino_model import plain  # type: ignore[import-not-found]
from openvino_settings import CAPABILITIES, OpenvinoSettings  # type: ignore[import-not-found]

VIRTUAL = ("AUTO", "MULTI", "HETERO", "BATCH")  # OpenVINO's devices that choose among others


class Compiled:
    """A compiled model, and in words how it came to be; ValueError when the device cannot take it."""

    def __init__(self, model: Any, settings: OpenvinoSettings, name: str, version: str) -> None:
        self.core, self.device, self.warnings = openvino.Core(), settings.device, [*settings.warnings]
        if settings.extension:
            self.core.add_extension(settings.extension)
        capabilities = self._capabilities()
        if settings.lacks(capabilities):
            self.warnings.append(f"{self.device} has no instructions for {settings.precision}, so f32 is used")
        started = time.monotonic()
        self.model = self._compile(model, settings.properties(capabilities), name, version)
        self.seconds = time.monotonic() - started

    def describe(self) -> str:
        """For the log."""
        get = self.model.get_property
        said = [f"OpenVINO {openvino.__version__.partition('-')[0]} on {self.device}"]
        if self.device == "CPU":
            said.append(get("INFERENCE_PRECISION_HINT").get_type_name())
            said.append(f"{get('INFERENCE_NUM_THREADS')} threads in {get('NUM_STREAMS')} streams")
        made = "taken from the cache" if get("LOADED_FROM_CACHE") else "compiled"
        return ", ".join([*said, f"{made} in {self.seconds:.2f} s"])

    def _capabilities(self) -> list[str]:
        """Of the device; ValueError names those that are there."""
        asked = self.device.partition(":")[0].partition(".")[0]
        if asked in VIRTUAL:
            return list(CAPABILITIES.values())
        there = [device.partition(".")[0] for device in self.core.available_devices] if asked != "CPU" else ["CPU"]
        if asked not in there:
            raise ValueError(
                f"parameter 'TARGET_DEVICE': there is no device '{self.device}', only {', '.join(there)}; "
                "leave the parameter out for the processor"
            )
        return list(self.core.get_property(self.device, "OPTIMIZATION_CAPABILITIES"))

    def _compile(self, model: Any, properties: dict[str, Any], name: str, version: str) -> Any:
        try:
            with openvino_cache.opened(name, version) as folder:
                return self.core.compile_model(model, self.device, properties | {"CACHE_DIR": str(folder)})
        except (OSError, RuntimeError) as err:
            self.warnings.append(f"compiled without a cache: {plain(err)}")
        try:
            return self.core.compile_model(model, self.device, properties)
        except RuntimeError as err:
            raise ValueError(f"OpenVINO cannot compile the model for {self.device}: {plain(err)}") from err
