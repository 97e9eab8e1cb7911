"""Makes Triton load a staged model. If OpenVINO was chosen for the model and rejects it, ONNX
Runtime is tried instead, because a model is valid if any engine can run it."""

from collections.abc import Collection

from serving.errors import OutOfMemory, ServingError, TritonTimeout, TritonUnavailable
from serving.repository.staging import Store
from serving.triton.connection import Connection


def load(
    gateway: Connection, store: Store, name: str, parts: Collection[str], seconds: float
) -> tuple[str, ...]:
    """Make Triton load the model `name`, with the models that it calls. `parts` contains their
    names, and may contain others. Return the versions that were loaded. Raise a ServingError."""
    try:
        return gateway.load(name, seconds)
    except (OutOfMemory, TritonTimeout, TritonUnavailable):
        raise
    except ServingError as err:
        reasons = {name: str(err)}
        if parts:
            with store.lock:  # Triton's index fails if a staged folder changes meanwhile
                index = gateway.index()
            failed = [each for each in index if each.has_failed and each.name in parts]
            reasons |= {each.name: each.reason for each in failed}
        switched = [store.leave_openvino(each, reason) for each, reason in reasons.items()]
        if not any(switched):
            raise
        return gateway.load(name, seconds)
