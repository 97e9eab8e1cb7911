"""What a ModelConfig, Triton's protobuf of a config.pbtxt, says."""

from typing import Any

from tritonclient.grpc import model_config_pb2

SEQUENCE_IDLE_SECONDS = 1.0  # of a model that sets none (sequence_batch_scheduler.cc)


def correlation_type(config: Any) -> str | None:
    """The datatype of the sequence ids of a ModelConfig; None when it has no sequence batching."""
    if not config.HasField("sequence_batching"):
        return None
    kind = model_config_pb2.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID
    controls = (c for each in config.sequence_batching.control_input for c in each.control)
    return next((datatype_name(control.data_type) for control in controls if control.kind == kind), "BYTES")


def sequence_idle_seconds(config: Any) -> float:
    """After how long without a request Triton forgets a sequence."""
    return float(config.sequence_batching.max_sequence_idle_microseconds / 1e6) or SEQUENCE_IDLE_SECONDS


def datatype_name(data_type: int) -> str:
    """ModelConfig's enum in the protocol's spelling: TYPE_FP32 -> FP32, TYPE_STRING -> BYTES."""
    name = str(model_config_pb2.DataType.Name(data_type)).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name
