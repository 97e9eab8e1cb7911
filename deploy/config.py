"""Reads --config FILE, which contains parts of AWS's requests, keyed by operation, and merges them
into the requests that a command sends."""

import argparse
import json
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from deploy.aws import Aws, Reply
from deploy.errors import UsageError

SERVICES = {
    "CreateRepository": "ecr",
    "CreateModel": "sagemaker",
    "CreateEndpointConfig": "sagemaker",
    "CreateEndpoint": "sagemaker",
    "UpdateEndpoint": "sagemaker",
    "RegisterScalableTarget": "application-autoscaling",
    "PutScalingPolicy": "application-autoscaling",
    "InvokeEndpoint": "sagemaker-runtime",
    "InvokeEndpointWithResponseStream": "sagemaker-runtime",
}
NAMES = {
    "ModelName",
    "EndpointConfigName",
    "EndpointName",
    "ResourceId",
    "PolicyName",
    "repositoryName",
}
MAX_BYTES = 65_536
MAX_DEPTH = 16


class Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Loads YAML without aliases, because nested aliases could expand a small file without
    limit."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not supported")
        return super().compose_node(parent, index)


def read(path: str) -> dict[str, Any]:
    """Return the content of the file: parts of requests, keyed by operation. Raise
    ArgumentTypeError if the file cannot be read or is invalid."""
    try:
        data = Path(path).read_bytes()
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has {len(data)} bytes, at most {MAX_BYTES} are read")
        document = json.loads(data) if path.endswith(".json") else yaml.load(data, Loader)
        if not isinstance(document, dict):
            raise ValueError("it must be an object")
        for operation, part in document.items():
            _check(operation, part)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as err:
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {err}") from None
    return document


def _check(operation: str, part: Any) -> None:
    """Raise ValueError if the file may not contain `part` under the name of this operation."""
    if operation not in SERVICES:
        raise ValueError(f"'{operation}' is not one of {', '.join(SERVICES)}")
    if not isinstance(part, dict):
        raise ValueError(f"{operation} must be an object")
    if fixed := NAMES & part.keys():
        raise ValueError(f"{operation}.{min(fixed)} follows from --name")


def with_config(aws: Aws, config: Mapping[str, Any], operation: str, parameters: Reply) -> Reply:
    """Return the operation's `parameters`, merged with its part in `config`, the content of
    --config. Raise a UsageError that lists the fields that botocore's model does not allow."""
    merged: Reply = merge(parameters, config.get(operation, {}))
    aws.check(SERVICES[operation], operation, merged)
    return merged


def merge(base: Any, patch: Any, depth: int = 0) -> Any:
    """Return `base`, changed by `patch`. Objects are merged by key, and null removes a key. Lists
    of objects are merged by position, so an empty list leaves a list of objects unchanged. Any
    other value in `patch` replaces the value in `base`.

    Except for lists of objects, this is JSON Merge Patch (RFC 7396). Raise UsageError if `patch` is
    nested more than MAX_DEPTH levels deep.
    """
    if depth > MAX_DEPTH:
        raise UsageError(f"--config: more than {MAX_DEPTH} levels in each other")
    if isinstance(patch, dict):
        merged = dict(base) if isinstance(base, dict) else {}
        for key, value in patch.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = merge(merged.get(key), value, depth + 1)
        return merged
    if _is_list_of_objects(patch):
        objects = base if _is_list_of_objects(base) else []
        pairs: Iterable[tuple[Any, Any]] = zip_longest(objects, patch, fillvalue={})
        return [merge(old, new, depth + 1) for old, new in pairs]
    return patch


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)
