"""Runs `python -m deploy COMMAND`; `python -m deploy --help` lists the commands."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from deploy import autoscale, config
from deploy.aws import Aws
from deploy.endpoint import create, delete, require, status, update
from deploy.errors import DeployError, UsageError, explain
from deploy.invoke import invoke
from deploy.options import Common, Create, Delete, Endpoint, Invoke, Push, Scale, add_flags
from deploy.push import push
from deploy.stack import say

SIMULATED_REGION = "us-east-1"  # the region for --endpoint-url if none is set
POLL = 10.0  # seconds between checks of an endpoint


def scale(options: Scale, aws: Aws) -> None:
    """Register the endpoint's variant and a scaling policy with Application Auto Scaling, or remove
    both. Raise DeployError if the stack has no endpoint, and UsageError for invalid options."""
    require(options, aws)
    if options.remove:
        was_scaled = autoscale.remove(aws, options.name)
        aws.report("scaling removed" if was_scaled else "the endpoint was not scaled")
        return
    metric = autoscale.CONCURRENCY if options.concurrency else autoscale.INVOCATIONS
    policy = autoscale.policy(options.name, metric, options.concurrency or options.invocations)
    target = {
        **autoscale.variant(options.name),
        "MinCapacity": options.min,
        "MaxCapacity": options.max,
    }
    target = config.with_config(aws, options.config, "RegisterScalableTarget", target)
    fewest, most = target["MinCapacity"], target["MaxCapacity"]
    if fewest > most:
        raise UsageError(f"--min {fewest} is more than --max {most}")
    policy = config.with_config(aws, options.config, "PutScalingPolicy", policy)
    aws.write(autoscale.SERVICE, "RegisterScalableTarget", target)
    aws.write(autoscale.SERVICE, "PutScalingPolicy", policy)
    aws.report(f"the endpoint '{options.name}' scales with its load")


# maps each command to the class of its options, its function, and its help text
COMMANDS: dict[str, tuple[type[Common], Callable[[Any, Aws], None], str]] = {
    "push": (Push, push, "push the image to ECR"),
    "create": (Create, create, "create the model, the endpoint configuration and the endpoint"),
    "update": (Endpoint, update, "change image, models or settings by a blue/green deployment"),
    "autoscale": (Scale, scale, "scale the number of instances with the load"),
    "invoke": (Invoke, invoke, "send a file, a text or JSON to the endpoint"),
    "status": (Common, status, "print the endpoint's state and what runs on it"),
    "delete": (Delete, delete, "delete endpoint, configurations and models, after asking"),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy", description="Run the image on Amazon SageMaker."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (options_class, _, text) in COMMANDS.items():
        add_flags(commands.add_parser(name, help=text, description=text), options_class)
    return parser


def main(
    words: Sequence[str], session: Callable[..., boto3.Session] = boto3.Session, poll: float = POLL
) -> int:
    """Run the command in `words`. Return the exit code: 0, 1 if the command failed, 2 if it raised
    UsageError, or 130 if it was interrupted. If argparse rejects the words, exit with 2."""
    flags = vars(build_parser().parse_args(words))
    command = flags.pop("command")
    options_class, run, _ = COMMANDS[command]
    options = options_class(**flags)
    if options.dry_run:
        say("dry run: calls that would write are only printed")
    try:
        run(options, _aws(options, session(profile_name=options.profile), poll))
    except KeyboardInterrupt:
        say("interrupted; AWS continues what it has begun")
        return 130
    except BrokenPipeError:
        # redirect stdout, because Python flushes it at exit, and would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (DeployError, ClientError, BotoCoreError) as err:
        text = str(err) if isinstance(err, DeployError) else explain(err)
        say(f"python -m deploy {command}: {text}")
        return 2 if isinstance(err, UsageError) else 1
    return 0


def _aws(options: Common, session: boto3.Session, poll: float) -> Aws:
    url = options.endpoint_url if isinstance(options, Invoke) else None
    region = options.region or os.environ.get("AWS_REGION") or session.region_name
    if url and not region:
        region = SIMULATED_REGION
    if not region:
        raise UsageError("no AWS region is set: give --region, or set AWS_REGION")
    return Aws(session, region, dry_run=options.dry_run, runtime_url=url, poll=poll)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
