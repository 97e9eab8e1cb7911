"""Makes Triton load a staged model. If OpenVINO was chosen for the model and rejects it, ONNX
Runtime is tried instead, because a model is valid if any engine can run it."""

from collections.abc import Collection

from serving.errors import OutOfMemory, ServingError, TritonTimeout, TritonUnavailable
from serving.repository.staging import Store
from serving.triton.connection import Connection


def load(
    gateway: Connection, store: Store, name: str, parts: Collection[str], seconds: float
) -> tuple[str, ...]:
    """Make Triton load the model `name`, with the models that it calls. `parts` contains the names
    of those models, and may contain others. If the load fails, switch the failed models for which
    OpenVINO was chosen to ONNX Runtime, and try once more. Each try may take `seconds`. Return the
    versions of `name` that were loaded. Raise a ServingError."""
    try:
        return gateway.load(name, seconds)
    except (OutOfMemory, TritonTimeout, TritonUnavailable):
        raise  # OpenVINO has not rejected the model
    except ServingError as err:
        reasons = {name: str(err)}
        if parts:
            with store.lock:  # Triton's index fails if a staged folder changes meanwhile
                index = gateway.index()
            for version in index:
                if version.has_failed and version.name in parts:
                    reasons[version.name] = version.reason
        has_switched = False
        for model, reason in reasons.items():
            has_switched |= store.leave_openvino(model, reason)
        if not has_switched:
            raise
        return gateway.load(name, seconds)
