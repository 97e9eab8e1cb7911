"""The command line: the commands, their options, and how errors are printed."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from deploy import autoscale, config
from deploy.aws import Aws
from deploy.endpoint import create, delete, require, status, update
from deploy.errors import DeployError, UsageError, explain
from deploy.invoke import invoke
from deploy.options import Common, Delete, Endpoint, Invoke, Options, Push, Scale, options_of
from deploy.push import ENGINES, push
from deploy.stack import PROJECT, say

SIMULATED_REGION = "us-east-1"  # used with --endpoint-url if no region is set
POLL = 10.0  # seconds between checks of an endpoint


def scale(options: Scale, aws: Aws) -> None:
    """Register the endpoint's variant and its scaling policy, or remove both."""
    require(options, aws)
    if options.remove:
        was_scaled = autoscale.remove(aws, options.name)
        aws.report("scaling removed" if was_scaled else "the endpoint was not scaled")
        return
    metric = autoscale.CONCURRENCY if options.concurrency else autoscale.INVOCATIONS
    bounds = {
        **autoscale.variant(options.name),
        "MinCapacity": options.min,
        "MaxCapacity": options.max,
    }
    policy = autoscale.policy(options.name, metric, options.concurrency or options.invocations)
    requests = [("RegisterScalableTarget", bounds), ("PutScalingPolicy", policy)]
    merged = [
        (name, config.request(aws, options.config, name, parameters))
        for name, parameters in requests
    ]
    for operation, parameters in merged:
        aws.write(autoscale.SERVICE, operation, parameters)
    aws.report(f"the endpoint '{options.name}' scales with its load")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy", description="Run the image on Amazon SageMaker."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, kind: type[Options], run: Callable[[Options, Aws], None], text: str
    ) -> Callable[..., object]:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(kind=kind, run=run)
        add = added.add_argument
        add(
            "--name",
            type=name_of,
            default=PROJECT,
            help="name of endpoint and stack (default: %(default)s)",
        )
        add("--region", help="AWS region (default: AWS_REGION, or the profile's)")
        add("--profile", help="profile of the AWS configuration")
        add(
            "--dry-run",
            action="store_true",
            help="read AWS, and print the calls that write instead of making them",
        )
        add(
            "--config",
            type=config.read,
            default={},
            metavar="FILE",
            help="JSON or YAML to merge into the requests",
        )
        return add

    add = command("push", Push, push, "push the image to ECR")
    add(
        "--local-image",
        default=PROJECT,
        metavar="IMAGE",
        help="image to push (default: %(default)s)",
    )
    add("--repository", default=PROJECT, help="repository in ECR (default: %(default)s)")
    add("--tag", help="default: git describe --tags --always --dirty")
    add("--engine", choices=ENGINES, help="default: the first that is installed")

    add = command(
        "create", Endpoint, create, "create the model, the endpoint configuration and the endpoint"
    )
    _container(add)
    add("--role", default=PROJECT, help="execution role: a name or an ARN (default: %(default)s)")
    add(
        "--multi-model",
        metavar="S3",
        help="make a multi-model endpoint for the archives in s3://…/",
    )

    _container(
        command(
            "update",
            Endpoint,
            update,
            "change image, models or settings by a blue/green deployment",
        )
    )

    add = command("autoscale", Scale, scale, "scale the number of instances with the load")
    add("--min", type=int, default=1, metavar="N", help="fewest instances (default: 1)")
    add("--max", type=int, default=4, metavar="N", help="most instances (default: 4)")
    add(
        "--invocations",
        type=float,
        default=70.0,
        metavar="N",
        help="target: calls a minute per instance (default: 70)",
    )
    add(
        "--concurrency",
        type=float,
        metavar="N",
        help="target instead: requests in flight; reacts sooner",
    )
    add(
        "--remove",
        action="store_true",
        help="stop scaling and keep the current number of instances",
    )

    add = command("invoke", Invoke, invoke, "send a file, a text or JSON to the endpoint")
    add(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="the body; its type follows from its name",
    )
    add("--text", help="a text as the body")
    add("--json", help="JSON as the body")
    add("--model", metavar="NAME", help="model to call; default: the endpoint's default model")
    add("--version", metavar="V", help="version of the model; default: the latest")
    add(
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the model, such as top_k=2",
    )
    add("--target-model", metavar="ARCHIVE", help="model of a multi-model endpoint: NAME.tar.gz")
    add("--content-type", metavar="TYPE", help="type of the body; default: by the file's name")
    add("--accept", metavar="TYPE", help="type of the reply")
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="write the reply here; .jpg and .png ask for an image",
    )
    add("--stream", action="store_true", help="print the reply's parts as they arrive")
    add("--endpoint-url", metavar="URL", help="URL of the runtime API, for a simulator")

    command("status", Common, status, "print the endpoint's state and what runs on it")
    add = command("delete", Delete, delete, "delete everything that was created, after asking")
    add("--yes", action="store_true", help="do not ask")
    return parser


def _container(add: Callable[..., object]) -> None:
    """Add the options of `create` and `update`."""
    add(
        "--image",
        metavar="URI",
        help="image in ECR; default: the repository's, tag by git describe",
    )
    add("--model-data", metavar="S3", help="s3://…/model.tar.gz, or s3://…/ for unpacked files")
    add(
        "--env",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a variable for the container",
    )
    add("--instance-type", metavar="TYPE", help="default: ml.c5.xlarge")
    add("--instances", type=int, metavar="N", help="number of instances; default: 1")
    add(
        "--inference-ami", metavar="NAME", help="host image, which decides the GPU driver's version"
    )
    add("--no-wait", action="store_true", help="return before AWS has finished")


def name_of(text: str) -> str:
    """Check a stack's name. 46 characters leave room for suffixes within SageMaker's limit of
    63."""
    if not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,45}", text) or len(text) > 46:
        raise argparse.ArgumentTypeError(
            f"'{text}' must be at most 46 letters and digits, with - only between them"
        )
    return text


def main(
    words: Sequence[str], session: Callable[..., boto3.Session] = boto3.Session, poll: float = POLL
) -> int:
    """Run a command. Return the exit code: 0, 1 if it failed, 2 if the options are invalid."""
    parsed = build_parser().parse_args(words)
    options = options_of(parsed.kind, parsed)
    try:
        parsed.run(options, _aws(options, session(profile_name=options.profile), poll))
    except KeyboardInterrupt:
        say("interrupted; AWS continues what it has begun")
        return 130
    except BrokenPipeError:
        # otherwise Python's flush at exit would fail, too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (DeployError, ClientError, BotoCoreError) as err:
        text = str(err) if isinstance(err, DeployError) else explain(err)
        say(f"python -m deploy {parsed.command}: {text}")
        return 2 if isinstance(err, UsageError) else 1
    return 0


def _aws(options: Common, session: boto3.Session, poll: float) -> Aws:
    url = options.endpoint_url if isinstance(options, Invoke) else None
    region = (
        options.region
        or os.environ.get("AWS_REGION")
        or session.region_name
        or (url and SIMULATED_REGION)
    )
    if not region:
        raise UsageError("no AWS region is set: give --region, or set AWS_REGION")
    return Aws(session, region, dry_run=options.dry_run, runtime_url=url, poll=poll)
