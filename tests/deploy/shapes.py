"""What a dry run prints, and whether botocore's own models accept it."""

import json
import re
from typing import Any

from botocore.session import Session
from botocore.validate import ParamValidator

from tests.deploy.conftest import Call

SESSION = Session()
IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/triton-multi-model:1.0"


def assert_valid(calls: list[Call]) -> None:
    """botocore accepts every call: names, types, required parameters, bounds, and the values that are enumerated."""
    assert calls
    for name, operation, parameters in calls:
        shape = SESSION.get_service_model(name).operation_model(operation).input_shape
        assert shape is not None
        report = ParamValidator().validate(parameters, shape)
        assert not report.has_errors(), f"{name} {operation}: {report.generate_report()}"
        assert_restrictions(shape, parameters, f"{name} {operation}")


def assert_restrictions(shape: Any, value: Any, where: str) -> None:
    """What ParamValidator leaves to the service: enumerations, and the length and pattern of strings."""
    if shape.type_name == "structure":
        for name, each in value.items():
            assert_restrictions(shape.members[name], each, f"{where}.{name}")
    elif shape.type_name == "list":
        for each in value:
            assert_restrictions(shape.member, each, where)
    elif shape.type_name == "string":
        allowed, pattern = shape.metadata.get("enum"), shape.metadata.get("pattern", "")
        assert not allowed or value in allowed, f"{where}: {value} is none of {allowed}"
        assert len(value) <= shape.metadata.get("max", len(value)), f"{where}: {value} is too long"
        if not re.search(r"\\[pAu]", pattern):  # Java's spelling, which Python's re lacks
            assert not pattern or re.search(pattern, value), f"{where}: {value} does not match {pattern}"


def printed(text: str) -> list[Call]:
    """The calls of a dry run's output: JSON objects one after the other."""
    decoder, position = json.JSONDecoder(), 0
    found: list[Call] = []
    while position < len(text.rstrip()):
        value, end = decoder.raw_decode(text, position)
        position = end + 1
        if "operation" in value:
            found.append((value["service"], value["operation"], value["parameters"]))
    return found


def plain(calls: list[Call]) -> list[Any]:
    """Without what a dry run cannot know: the digests of names that AWS would list, and its random names."""
    text = json.dumps(calls, default=lambda value: f"<{len(value)} bytes>")
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
    return list(json.loads(re.sub(r"-[0-9a-f]{8}\b", "-00000000", text)))
