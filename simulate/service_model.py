"""The headers that the sagemaker-runtime API allows, and their limits, read from botocore's service model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import botocore.session
from botocore.model import OperationModel, Shape

from simulate.errors import ValidationError

INVOKE, STREAM, ASYNC = "InvokeEndpoint", "InvokeEndpointWithResponseStream", "InvokeEndpointAsync"
OPERATIONS = (INVOKE, STREAM, ASYNC)
# {member of the API's request: the container's header for it}, of those that the container gets.
PASSED_ON = {
    "ContentType": "Content-Type",
    "Accept": "Accept",
    "CustomAttributes": "X-Amzn-SageMaker-Custom-Attributes",
    "TargetModel": "X-Amzn-SageMaker-Target-Model",
    "TargetVariant": "X-Amzn-SageMaker-Target-Variant",
    "TargetContainerHostname": "X-Amzn-SageMaker-Target-Container-Hostname",
    "InferenceId": "X-Amzn-SageMaker-Inference-Id",
    "EnableExplanations": "X-Amzn-SageMaker-Enable-Explanations",
    "InferenceComponentName": "X-Amzn-SageMaker-Inference-Component",
    "SessionId": "X-Amzn-SageMaker-Session-Id",
}
# Headers of HTTP, of the signature and of AWS's clients: it is no mistake that they do not reach the container.
TRANSPORT_HEADERS = re.compile(
    r"accept|accept-encoding|authorization|connection|content-(length|type|encoding|md5)|expect|host|user-agent|"
    r"transfer-encoding|x-amz-.*|x-amzn-trace-id|amz-sdk-.*|x-amz-user-agent",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Member:
    """A member of a request: its header and its limits; 0 and "" mean no limit."""

    name: str
    header: str
    shortest: int
    longest: int
    pattern: str
    kind: str

    def check(self, value: str) -> None:
        """Raises ValidationError with the platform's words."""
        constraint = self.violation(value)
        if constraint:
            name = self.name[0].lower() + self.name[1:]
            raise ValidationError(
                f"1 validation error detected: Value '{value[:100]}' at '{name}' failed to satisfy constraint: "
                f"Member must {constraint}"
            )

    def violation(self, value: str) -> str:
        """The constraint that the value breaks, in words; "" when it breaks none."""
        if self.kind == "integer":
            inside = value.isascii() and value.isdigit() and self.shortest <= int(value) <= self.longest
            return "" if inside else f"be a whole number from {self.shortest} to {self.longest}"
        if self.longest and len(value) > self.longest:
            return f"have length less than or equal to {self.longest}"
        if len(value) < self.shortest:
            return f"have length greater than or equal to {self.shortest}"
        if self.pattern and not re.fullmatch(self.pattern, value):
            return f"satisfy regular expression pattern: {self.pattern}"
        return ""


@cache
def members(operation: str) -> tuple[Member, ...]:
    """The request's members that are headers."""
    shape = _operation(operation).input_shape
    found = [] if shape is None else shape.members.items()
    return tuple(_member(name, member) for name, member in found if member.serialization.get("location") == "header")


@cache
def reply_headers(operation: str) -> Mapping[str, str]:
    """{member of a reply: its header}."""
    shape = _operation(operation).output_shape
    found = {} if shape is None else shape.members
    return {name: str(each.serialization["name"]) for name, each in found.items() if "name" in each.serialization}


def read(operation: str, headers: Mapping[str, str]) -> dict[str, str]:
    """{member: value} from a request's headers (names in lower case); raises ValidationError."""
    values = {}
    for member in members(operation):
        if (value := headers.get(member.header.lower())) is not None:
            member.check(value)
            values[member.name] = value
    return values


def dropped(operation: str, headers: Mapping[str, str]) -> list[str]:
    """The headers (names in lower case) that the API drops."""
    known = {member.header.lower() for member in members(operation)}
    return [name for name in headers if name not in known and not TRANSPORT_HEADERS.fullmatch(name)]


def is_new_session(header: str) -> bool:
    """Whether the header is a valid reply of a container to NEW_SESSION."""
    shape = _operation(INVOKE).output_shape
    return shape is None or not _member("NewSessionId", shape.members["NewSessionId"]).violation(header)


@cache
def _operation(name: str) -> OperationModel:
    return botocore.session.get_session().get_service_model("sagemaker-runtime").operation_model(name)


def _member(name: str, shape: Shape) -> Member:
    limits = shape.metadata
    return Member(
        name=name,
        header=str(shape.serialization["name"]),
        shortest=int(limits.get("min", 0)),
        longest=int(limits.get("max", 0)),
        pattern=_python_pattern(str(limits.get("pattern", ""))),
        kind=shape.type_name,
    )


def _python_pattern(java: str) -> str:
    """Java's regular expression, as the service model has it, in Python's syntax."""
    return java.replace(r"\p{ASCII}", r"[\x00-\x7F]").replace(r"\p{Print}", r"\x20-\x7E").replace(r"\z", r"\Z")
