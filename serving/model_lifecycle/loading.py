"""Makes Triton load a staged model, by ONNX Runtime if OpenVINO was chosen for it and refuses it:
an engine does not decide whether a model is valid."""

import logging
from collections.abc import Collection

from serving.errors import OutOfMemory, ServingError, TritonTimeout, TritonUnavailable
from serving.repository.staging import Store
from serving.triton.connection import Connection
from serving.triton.quirks import PREFACE

log = logging.getLogger(__name__)


def load(
    gateway: Connection, store: Store, name: str, parts: Collection[str], seconds: float
) -> tuple[str, ...]:
    """Make Triton load the model `name`, which calls the models `parts` if it is an ensemble.
    Return the versions that it has loaded. Raise a ServingError."""
    try:
        return gateway.load(name, seconds)
    except (OutOfMemory, TritonTimeout, TritonUnavailable):
        raise
    except ServingError as err:
        reasons = {name: str(err)}
        if parts:
            with store.lock:  # Triton fails if a staged folder changes meanwhile
                index = gateway.index()
            failed = [each for each in index if each.has_failed and each.name in parts]
            reasons |= {each.name: each.reason for each in failed}
        left = [leave_openvino(store, each, reason) for each, reason in reasons.items()]
        if not any(left):
            raise
        return gateway.load(name, seconds)


def leave_openvino(store: Store, name: str, reason: str) -> bool:
    """Stage a model that OpenVINO refused for ONNX Runtime, and log that. Return whether that could
    be done."""
    choice = store.leave_openvino(name, " ".join(PREFACE.sub("", reason).split()))
    if choice:
        log.warning("%s: %s", name, choice)
    return bool(choice)
