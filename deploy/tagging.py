"""Tags of the user's own, on all that a command makes: for the bill, for policies."""

import argparse
import re
from collections.abc import Iterable

from deploy.context import Context
from deploy.errors import UsageError
from deploy.stack import tags

OURS = ("created-by", "stack")
MOST = 48  # of the 50 that AWS allows
WORD = r"[\w .:/=+@-]"  # what AWS allows in keys and values


def configure(parser: argparse.ArgumentParser) -> None:
    """The option of the commands that make something."""
    parser.add_argument(
        "--tag",
        action="append",
        default=[],
        dest="own_tags",
        metavar="KEY=VALUE",
        help="a tag of your own on all that is made, beside created-by and stack; repeatable",
    )


def read(given: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The pairs; raises UsageError for one that AWS refuses."""
    found: dict[str, str] = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not re.fullmatch(f"{WORD}{{1,128}}", key) or not re.fullmatch(f"{WORD}{{0,256}}", value):
            raise UsageError(f"--tag '{text}' is not KEY=VALUE of letters, digits, spaces and . : / = + @ - _")
        if key in OURS or key.lower().startswith("aws:"):
            raise UsageError(f"--tag '{key}': by {' and '.join(OURS)} this program finds its own, and aws: is AWS's")
        found[key] = value
    if len(found) > MOST:
        raise UsageError(f"{len(found)} tags: {MOST} of your own are the most")
    return tuple(found.items())


def all_tags(context: Context) -> list[dict[str, str]]:
    """The stack's and the user's."""
    return [*tags(context.name), *({"Key": key, "Value": value} for key, value in context.tags)]


def own_tags(context: Context, resource: str) -> tuple[tuple[str, str], ...]:
    """Those of the user that a resource has."""
    found = context.calls.pages("sagemaker", "ListTags", {"ResourceArn": resource}, "Tags", tags(context.name))
    pairs = ((each["Key"], each["Value"]) for each in found)
    return tuple((key, value) for key, value in pairs if key not in OURS and not key.startswith("aws:"))
