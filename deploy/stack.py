"""What belongs to a stack: names, tags, and what AWS has with these tags."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from deploy.context import Context
from deploy.errors import UsageError

PROJECT = "triton-multi-model"
VARIANT = "AllTraffic"
MAX_NAME = 46  # of SageMaker's 63 characters: what is left is for the suffix of a transform job
ACCOUNT = "123456789012"  # stands for the user's in a dry run
DIGEST = 8  # hexadecimal digits
ASSUMED_DIGEST = "0" * DIGEST


@dataclass(frozen=True)
class Kind:
    """A kind of SageMaker's resources; `word` names it in operations, fields and, in lower case, in its ARN."""

    word: str
    arn: str
    label: str


ENDPOINT = Kind("Endpoint", "endpoint", "endpoint")
CONFIG = Kind("EndpointConfig", "endpoint-config", "endpoint configuration")
MODEL = Kind("Model", "model", "model")


def check_name(name: str) -> str:
    """The name; raises UsageError when SageMaker would refuse it."""
    if not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", name) or len(name) > MAX_NAME:
        raise UsageError(f"--name '{name}': letters, digits and single - within, at most {MAX_NAME} characters")
    return name


def tags(name: str) -> list[dict[str, str]]:
    """The two tags by which `delete` finds what was created."""
    return [{"Key": "created-by", "Value": PROJECT}, {"Key": "stack", "Value": name}]


def is_ours(found: list[dict[str, str]], name: str) -> bool:
    """Whether these are a resource's tags that this stack's commands have made."""
    return all(tag in found for tag in tags(name))


def content_name(name: str, parameters: dict[str, Any]) -> str:
    """NAME-DIGEST: the same parameters have the same name, so that what failed half-way can be repeated."""
    text = json.dumps(parameters, sort_keys=True)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:DIGEST]}"


def arn(context: Context, kind: Kind, name: str) -> str:
    """An ARN as a dry run assumes it."""
    return f"arn:aws:sagemaker:{context.region}:{ACCOUNT}:{kind.arn}/{name}"


def has_tags(context: Context, resource: str) -> bool:
    """Whether SageMaker's resource with this ARN is the stack's."""
    found = context.calls.pages("sagemaker", "ListTags", {"ResourceArn": resource}, "Tags", tags(context.name))
    return is_ours(found, context.name)


def owned(context: Context, kind: Kind, but: str = "") -> list[str]:
    """Names of the stack's resources of this kind, newest first, without the one named `but`."""
    assumed = context.name if kind is ENDPOINT else f"{context.name}-{ASSUMED_DIGEST}"
    item = {f"{kind.word}Name": assumed, f"{kind.word}Arn": arn(context, kind, assumed)}
    order = {"NameContains": context.name, "SortBy": "CreationTime", "SortOrder": "Descending"}
    found = context.calls.pages("sagemaker", f"List{kind.word}s", order, f"{kind.word}s", [item])
    mine = re.compile(re.escape(context.name) + rf"(-[0-9a-f]{{{DIGEST}}})?")
    return [
        each[f"{kind.word}Name"]
        for each in found
        if each[f"{kind.word}Name"] != but
        and mine.fullmatch(each[f"{kind.word}Name"])
        and has_tags(context, each[f"{kind.word}Arn"])
    ]


def remove(context: Context, kind: Kind, name: str) -> None:
    """Deletes it; one that is gone already is no error."""
    context.say(f"deleting {kind.label} {name}")
    context.calls.find("sagemaker", f"Delete{kind.word}", {f"{kind.word}Name": name})
