"""How much memory the loaded models may take, and what one more would take."""

from dataclasses import dataclass

# What a model takes beside its weights, in bytes: a plain Python stub has 17 MB of its own, with numpy and ONNX
# Runtime 30 MB, and 1 MB of shared memory per instance.
PER_MODEL = 32 * 1024 * 1024
# Weights are read and then packed for the processor: a ResNet-50 of 102 MB takes 2 to 4 times that.
PER_BYTE_OF_FILES = 2


@dataclass(frozen=True)
class ModelMemory:
    """Bytes that Triton and its models may take."""

    limit: int

    def shortfall(self, used: int, needed: int) -> str:
        """Why `needed` bytes more than `used` are too many, in words; "" when they are not."""
        if used + needed <= self.limit:
            return ""
        megabytes = [f"{number / 2**20:.0f} MB" for number in (needed, used, self.limit)]
        return (
            f"the model would take about {megabytes[0]}, those loaded take {megabytes[1]} of the {megabytes[2]} that "
            "they may take; unload others, or raise SERVE_MODEL_MEMORY_SHARE or the container's memory"
        )


def estimate(weight: int, models: int) -> int:
    """Bytes that `models` models with files of `weight` bytes in all will take."""
    return models * PER_MODEL + PER_BYTE_OF_FILES * weight
