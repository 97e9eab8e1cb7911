"""Finds out from botocore's service model which headers the sagemaker-runtime API allows, and what
their limits are. A field of a request or a reply is called a member, as in botocore."""

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
# Headers of HTTP, of request signing and of AWS's clients. Every caller sends some of them, so they
# are dropped without a complaint if the API does not pass them on.
TRANSPORT_HEADERS = re.compile(
    r"accept|accept-encoding|authorization|connection|content-(length|type|encoding|md5)|expect|"
    r"host|user-agent|transfer-encoding|x-amz-.*|x-amzn-trace-id|amz-sdk-.*"
)


@cache
def request_headers(operation: str) -> Mapping[str, tuple[str, Shape]]:
    """Return the members of the operation's request that are sent as headers, as a mapping
    {lowercase header: (member, shape)}."""
    members = _operation(operation).input_shape.members
    return {
        str(shape.serialization["name"]).lower(): (name, shape)
        for name, shape in members.items()
        if shape.serialization.get("location") == "header"
    }


def passed_on(members: Mapping[str, str]) -> dict[str, str]:
    """Convert the members of a request to the headers that the container receives. These are the
    headers of InvokeEndpoint, whatever the operation."""
    headers = {
        name: str(shape.serialization["name"]) for name, shape in request_headers(INVOKE).values()
    }
    return {headers[name]: value for name, value in members.items() if name in headers}


@cache
def reply_headers(operation: str) -> Mapping[str, str]:
    """Return the members of the operation's reply that are sent as headers, as a mapping {member:
    header}."""
    members = _operation(operation).output_shape.members
    return {
        name: str(shape.serialization["name"])
        for name, shape in members.items()
        if "name" in shape.serialization
    }


def read(operation: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Convert the headers of a request, whose names are lowercase, to a mapping {member: value}.
    Raise ValidationError if a value violates a constraint of the API."""
    members = {}
    for header, (name, shape) in request_headers(operation).items():
        if header not in headers:
            continue
        value = headers[header]
        constraint = violation(shape, value)
        if constraint:
            raise ValidationError(
                f"1 validation error detected: Value '{value[:100]}' at "
                f"'{name[0].lower()}{name[1:]}' failed to satisfy constraint: Member "
                f"must {constraint}"
            )
        members[name] = value
    return members


def dropped(operation: str, headers: Mapping[str, str]) -> list[str]:
    """Return the names of the headers that the API does not pass on, other than TRANSPORT_HEADERS.
    All names are lowercase."""
    known = request_headers(operation)
    return [name for name in headers if name not in known and not TRANSPORT_HEADERS.fullmatch(name)]


def is_new_session(header: str) -> bool:
    """Return whether `header` is a value of Session-Id with which the container may answer
    NEW_SESSION."""
    return not violation(_operation(INVOKE).output_shape.members["NewSessionId"], header)


def violation(shape: Shape, value: str) -> str:
    """Return the constraint that the value violates, in the platform's words, or "" if it violates
    none."""
    # limits of a number, or of a text's length
    low = int(shape.metadata.get("min", 0))
    high = int(shape.metadata.get("max", 0))
    if shape.type_name == "integer":
        is_number = value.isascii() and value.isdigit()
        if is_number and low <= int(value) <= high:
            return ""
        return f"be a whole number from {low} to {high}"
    if high and len(value) > high:
        return f"have length less than or equal to {high}"
    if len(value) < low:
        return f"have length greater than or equal to {low}"
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
