# ruff: noqa: RUF009  (`option` returns a field of the dataclass)
"""Defines the options of each command as a frozen dataclass, from whose fields the command-line
flags are made."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from deploy import config

PROJECT = "triton-multi-model"
# Maps each container engine to the options of its `push` that avoid an OCI manifest, which
# SageMaker refuses. `docker push` has no such option; docs/deploy.md says how to build the image
# instead.
ENGINES: dict[str, list[str]] = {
    "docker": [],
    "podman": ["--format", "v2s2"],
    "buildah": ["--format", "v2s2"],
}


def option(default: Any, about: str, **words: Any) -> Any:
    """Declare a field of the options, and its flag on the command line. The flag is --NAME unless
    `words` contains `flag`. The other `words` are passed to argparse's add_argument. If `default`
    is callable, it creates the default."""
    initial = {"default_factory": default} if callable(default) else {"default": default}
    return field(**initial, metadata={"help": about, **words})


def stack_name(text: str) -> str:
    """Return the text if it is a valid name of a stack, otherwise raise ArgumentTypeError.
    SageMaker allows names of up to 63 characters. The limit of 46 leaves room for the suffixes that
    this program appends."""
    if not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,45}", text) or len(text) > 46:
        raise argparse.ArgumentTypeError(
            f"'{text}' must be at most 46 letters and digits, with - only between them"
        )
    return text


def archive_or_folder(text: str) -> str:
    """Return the URL if it names an archive, or a folder by its final /. Otherwise raise
    ArgumentTypeError."""
    if not re.fullmatch(r"s3://[^/]+/(.+\.tar\.gz|(.+/)?)", text):
        raise argparse.ArgumentTypeError(
            f"'{text}' must be s3://BUCKET/KEY.tar.gz, or s3://BUCKET/PREFIX/ with a final /: "
            "copy local files to S3 first"
        )
    return text


def folder_of_archives(text: str) -> str:
    """Return the URL if it names a folder in S3, otherwise raise ArgumentTypeError."""
    if not re.fullmatch(r"s3://[^/]+/(.+/)?", text):
        raise argparse.ArgumentTypeError(
            f"'{text}' must be s3://BUCKET/PREFIX/ with a final /, a folder of archives"
        )
    return text


def instance_type(text: str) -> str:
    """Return the text if it has the form of SageMaker's instance types, otherwise raise
    ArgumentTypeError."""
    if not re.fullmatch(r"ml\.[a-z0-9-]+\.[a-z0-9]+", text):
        raise argparse.ArgumentTypeError(
            f"'{text}' must be an instance type of SageMaker, such as ml.c5.xlarge"
        )
    return text


@dataclass(frozen=True, kw_only=True)
class Common:
    """The options that all commands have. `name` is the name of the stack. `config` is the content
    of the file that --config names: parts of AWS's requests, keyed by operation."""

    name: str = option(PROJECT, f"name of endpoint and stack (default: {PROJECT})", type=stack_name)
    region: str | None = option(None, "AWS region (default: AWS_REGION, or the profile's)")
    profile: str | None = option(None, "profile of the AWS configuration")
    dry_run: bool = option(
        False,
        "read AWS, and print the calls that write instead of making them",
        action="store_true",
    )
    config: Mapping[str, Any] = option(
        dict, "JSON or YAML to merge into the requests", type=config.read, metavar="FILE"
    )


@dataclass(frozen=True, kw_only=True)
class Push(Common):
    local_image: str = option(PROJECT, f"image to push (default: {PROJECT})", metavar="IMAGE")
    repository: str = option(PROJECT, f"repository in ECR (default: {PROJECT})")
    tag: str | None = option(None, "default: git describe --tags --always --dirty")
    engine: str | None = option(None, "default: the first that works", choices=ENGINES)


@dataclass(frozen=True, kw_only=True)
class Endpoint(Common):
    """The options of `update`, all of which `create` has too. If an option is None, `update` keeps
    the current value, and `create` uses the default. `role` and `multi_model` have flags only in
    `create`. `own_tags` has no flag: `update` sets it to the endpoint's tags, except those that
    mark the stack."""

    image: str | None = option(
        None, "image in ECR; default: the repository's, tag by git describe", metavar="URI"
    )
    model_data: str | None = option(
        None,
        "s3://…/model.tar.gz, or s3://…/ for unpacked files",
        type=archive_or_folder,
        metavar="S3",
    )
    env: Sequence[str] = option(
        (), "a variable for the container", action="append", metavar="KEY=VALUE"
    )
    instance_type: str | None = option(
        None, "default: ml.c5.xlarge", type=instance_type, metavar="TYPE"
    )
    instances: int | None = option(None, "number of instances; default: 1", type=int, metavar="N")
    inference_ami: str | None = option(
        None, "host image, which decides the GPU driver's version", metavar="NAME"
    )
    no_wait: bool = option(False, "return before AWS has finished", action="store_true")
    role: str = ""
    multi_model: str | None = None
    own_tags: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Create(Endpoint):
    role: str = option(PROJECT, f"execution role: a name or an ARN (default: {PROJECT})")
    multi_model: str | None = option(
        None,
        "make a multi-model endpoint for the archives in s3://…/",
        type=folder_of_archives,
        metavar="S3",
    )


@dataclass(frozen=True, kw_only=True)
class Scale(Common):
    min: int = option(1, "fewest instances (default: 1)", type=int, metavar="N")
    max: int = option(4, "most instances (default: 4)", type=int, metavar="N")
    invocations: float = option(
        70.0, "target: calls a minute per instance (default: 70)", type=float, metavar="N"
    )
    concurrency: float | None = option(
        None, "target instead: requests in flight; reacts sooner", type=float, metavar="N"
    )
    remove: bool = option(
        False, "stop scaling and keep the current number of instances", action="store_true"
    )


@dataclass(frozen=True, kw_only=True)
class Invoke(Common):
    file: Path | None = option(
        None,
        "the body; its type follows from its name",
        flag="file",
        nargs="?",
        type=Path,
        metavar="FILE",
    )
    text: str | None = option(None, "a text as the body")
    json: str | None = option(None, "JSON as the body")
    model: str | None = option(
        None, "model to call; default: the endpoint's default model", metavar="NAME"
    )
    version: str | None = option(None, "version of the model; default: the latest", metavar="V")
    parameter: Sequence[str] = option(
        (), "of the model, such as top_k=2", action="append", metavar="NAME=VALUE"
    )
    target_model: str | None = option(
        None, "model of a multi-model endpoint: NAME.tar.gz", metavar="ARCHIVE"
    )
    content_type: str | None = option(
        None, "type of the body; default: by the file's name", metavar="TYPE"
    )
    accept: str | None = option(None, "type of the reply", metavar="TYPE")
    output: Path | None = option(
        None, "write the reply here; .jpg and .png ask for an image", type=Path, metavar="FILE"
    )
    stream: bool = option(False, "print the reply's parts as they arrive", action="store_true")
    endpoint_url: str | None = option(
        None, "URL of the runtime API, for a simulator", metavar="URL"
    )


@dataclass(frozen=True, kw_only=True)
class Delete(Common):
    yes: bool = option(False, "do not ask", action="store_true")


def add_flags(parser: argparse.ArgumentParser, options_class: type[Common]) -> None:
    """Add a flag to the parser for each field of the class that `option` declares. If a flag is not
    given, the field keeps its default."""
    for declared in fields(options_class):
        words = dict(declared.metadata)
        if words:
            flag = words.pop("flag", f"--{declared.name.replace('_', '-')}")
            parser.add_argument(flag, default=argparse.SUPPRESS, **words)
