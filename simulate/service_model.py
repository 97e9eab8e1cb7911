"""Reads the headers that the sagemaker-runtime API allows, and their limits, from botocore's
service model. A member is botocore's word for a field of a request or a reply."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import botocore.session
from botocore.model import Shape

from simulate.errors import ValidationError

INVOKE = "InvokeEndpoint"
STREAM = "InvokeEndpointWithResponseStream"
ASYNC = "InvokeEndpointAsync"
# Headers of HTTP, request signing and AWS's clients. They are not expected to reach the container.
TRANSPORT_HEADERS = re.compile(
    r"accept|accept-encoding|authorization|connection|content-(length|type|encoding|md5)|expect|"
    r"host|user-agent|transfer-encoding|x-amz-.*|x-amzn-trace-id|amz-sdk-.*"
)


@cache
def request_headers(operation: str) -> Mapping[str, tuple[str, Shape]]:
    """Return {lowercase header: (member, shape)} for the request's members that are headers."""
    members = _operation(operation).input_shape.members
    return {
        str(shape.serialization["name"]).lower(): (name, shape)
        for name, shape in members.items()
        if shape.serialization.get("location") == "header"
    }


def passed_on(members: Mapping[str, str]) -> dict[str, str]:
    """Convert a request's members to the headers that the container receives: for any operation,
    the headers of InvokeEndpoint."""
    headers = {
        name: str(shape.serialization["name"]) for name, shape in request_headers(INVOKE).values()
    }
    return {headers[name]: value for name, value in members.items() if name in headers}


@cache
def reply_headers(operation: str) -> Mapping[str, str]:
    """Return {member of the reply: its header}."""
    members = _operation(operation).output_shape.members
    return {
        name: str(shape.serialization["name"])
        for name, shape in members.items()
        if "name" in shape.serialization
    }


def read(operation: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return {member: value} for a request's headers, whose names are lowercase. Raise
    ValidationError if a value violates its constraint."""
    values = {}
    for header, (name, shape) in request_headers(operation).items():
        if (value := headers.get(header)) is not None:
            if constraint := violation(shape, value):
                raise ValidationError(
                    f"1 validation error detected: Value '{value[:100]}' at "
                    f"'{name[0].lower()}{name[1:]}' failed to satisfy constraint: Member "
                    f"must {constraint}"
                )
            values[name] = value
    return values


def dropped(operation: str, headers: Mapping[str, str]) -> list[str]:
    """Return the headers that the API drops. All names are lowercase."""
    known = request_headers(operation)
    return [name for name in headers if name not in known and not TRANSPORT_HEADERS.fullmatch(name)]


def is_new_session(header: str) -> bool:
    """Return whether the header is a valid response by the container to NEW_SESSION."""
    return not violation(_operation(INVOKE).output_shape.members["NewSessionId"], header)


def violation(shape: Shape, value: str) -> str:
    """Return the constraint that the value violates, in the platform's words, or "" if it violates
    none."""
    shortest = int(shape.metadata.get("min", 0))
    longest = int(shape.metadata.get("max", 0))
    if shape.type_name == "integer":
        inside = value.isascii() and value.isdigit() and shortest <= int(value) <= longest
        return "" if inside else f"be a whole number from {shortest} to {longest}"
    if longest and len(value) > longest:
        return f"have length less than or equal to {longest}"
    if len(value) < shortest:
        return f"have length greater than or equal to {shortest}"
    java = str(shape.metadata.get("pattern", ""))  # in Java's syntax
    pattern = (
        java.replace(r"\p{ASCII}", r"[\x00-\x7F]")
        .replace(r"\p{Print}", r"\x20-\x7E")
        .replace(r"\z", r"\Z")
    )
    if pattern and not re.fullmatch(pattern, value):
        return f"satisfy regular expression pattern: {java}"
    return ""


@cache
def _operation(name: str) -> Any:
    return (
        botocore.session.get_session().get_service_model("sagemaker-runtime").operation_model(name)
    )
