"""The options of each command, parsed and checked by argparse. They are immutable."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar


@dataclass(frozen=True, kw_only=True)
class Common:
    """The options of every command. `name` is the stack's name; `config` contains the parts of
    requests from --config, keyed by operation."""

    name: str
    region: str | None = None
    profile: str | None = None
    dry_run: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Push(Common):
    local_image: str
    repository: str
    tag: str | None = None
    engine: str | None = None


@dataclass(frozen=True, kw_only=True)
class Endpoint(Common):
    """The options of `create` and `update`. None keeps the current value, or selects the default.
    `own_tags` are the endpoint's tags other than the stack's."""

    image: str | None = None
    model_data: str | None = None
    multi_model: str | None = None
    env: Sequence[str] = ()
    role: str = ""
    instance_type: str | None = None
    instances: int | None = None
    inference_ami: str | None = None
    no_wait: bool = False
    own_tags: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Scale(Common):
    min: int
    max: int
    invocations: float
    concurrency: float | None = None
    remove: bool = False


@dataclass(frozen=True, kw_only=True)
class Invoke(Common):
    file: Path | None = None
    text: str | None = None
    json: str | None = None
    model: str | None = None
    version: str | None = None
    parameter: Sequence[str] = ()
    target_model: str | None = None
    content_type: str | None = None
    accept: str | None = None
    output: Path | None = None
    stream: bool = False
    endpoint_url: str | None = None


@dataclass(frozen=True, kw_only=True)
class Delete(Common):
    yes: bool = False


Options = TypeVar("Options", bound=Common)


def options_of(kind: type[Options], parsed: argparse.Namespace) -> Options:
    """Create a `kind` from the parsed options that it has fields for."""
    values = vars(parsed)
    names = [each.name for each in fields(kind)]
    return kind(**{name: values[name] for name in names if name in values})
