"""The command line: the table of commands, their common options, and how errors are printed."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from deploy import (
    components,
    costs,
    create,
    delete,
    invoke,
    logs,
    push,
    scaling,
    status,
    tagging,
    transform,
    update,
    variants,
)
from deploy.calls import RUNTIME, LiveCalls, PrintedCalls
from deploy.context import Context
from deploy.engine import LocalEngine, PrintedEngine
from deploy.errors import DeployError, UsageError, explain
from deploy.regions import guessed, partition_of
from deploy.stack import ACCOUNT, ASSUMED_DIGEST, PROJECT, check_name

COMMANDS: dict[str, ModuleType] = {
    "push": push,
    "create": create,
    "update": update,
    "variant": variants,
    "component": components,
    "autoscale": scaling,
    "invoke": invoke,
    "transform": transform,
    "status": status,
    "logs": logs,
    "delete": delete,
    "costs": costs,
}
SIMULATED_REGION = "us-east-1"  # when no region is set and AWS is not called
INTERRUPTED = 130  # the exit code after Ctrl-C


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy", description="Push the image to ECR and run it on Amazon SageMaker."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        command.add_argument("--name", default=PROJECT, help="name of endpoint and stack (default: %(default)s)")
        command.add_argument("--region", help="AWS region (default: AWS_REGION, or the profile's)")
        command.add_argument("--profile", help="profile of the AWS configuration")
        command.add_argument("--dry-run", action="store_true", help="print the API calls and make none, not even reads")
        module.configure(command)
    return parser


def out(text: str) -> None:
    """Prints a result to stdout."""
    print(text, flush=True)


def say(text: str) -> None:
    """Prints progress or an error to stderr."""
    print(text, file=sys.stderr, flush=True)


def confirm(question: str) -> bool:
    """Asks a person; raises UsageError when standard input is not a terminal."""
    if not sys.stdin.isatty():
        raise UsageError("cannot ask for confirmation, because standard input is not a terminal: --yes confirms")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@dataclass(frozen=True)
class Host:
    """What the commands use of this machine; tests inject another."""

    session: Callable[..., boto3.Session] = boto3.Session
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    confirm: Callable[[str], bool] = confirm


THIS_HOST = Host()


def main(words: Sequence[str], host: Host = THIS_HOST) -> int:
    """Runs a command; returns the exit code: 0, 1 when it failed, 2 when the command line is wrong."""
    arguments = build_parser().parse_args(words)
    try:
        arguments.name = check_name(arguments.name)
        COMMANDS[arguments.command].run(arguments, _context(arguments, host))
    except KeyboardInterrupt:
        say("interrupted; AWS continues what it has begun")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's flush at exit would fail again
        return 1
    except UsageError as err:
        say(f"python -m deploy {arguments.command}: {err}")
        return 2
    except (DeployError, ClientError, BotoCoreError) as err:
        say(f"python -m deploy {arguments.command}: {err if isinstance(err, DeployError) else explain(err)}")
        return 1
    return 0


def _context(arguments: argparse.Namespace, host: Host) -> Context:
    runtime = getattr(arguments, "endpoint_url", None)
    session = host.session(profile_name=arguments.profile)
    region = arguments.region or os.environ.get("AWS_REGION") or session.region_name
    without_aws = runtime or getattr(arguments, "container", None) or arguments.command == "costs"
    region = region or (SIMULATED_REGION if without_aws else "")
    if not region:
        raise DeployError("no AWS region is set: give --region, or set AWS_REGION")
    partition = guessed(region) if without_aws else partition_of(region)
    own = tagging.read(getattr(arguments, "own_tags", ()))
    if arguments.dry_run:
        return replace(_dry_context(arguments.name, region, host), partition=partition, tags=own)
    calls = LiveCalls(session, region, {RUNTIME: runtime} if runtime else {})
    return Context(
        calls=calls,
        name=arguments.name,
        region=region,
        engine=LocalEngine(),
        out=out,
        say=say,
        confirm=host.confirm,
        clock=host.clock,
        sleep=host.sleep,
        partition=partition,
        tags=own,
    )


def _dry_context(name: str, region: str, host: Host) -> Context:
    """Prints calls and commands to stdout, messages to stderr; answers every question with yes."""

    def say_dry(text: str) -> None:
        say(f"(dry run) {text}")

    say_dry(f"no call is made; {ACCOUNT} stands for your account, -{ASSUMED_DIGEST} for a name that AWS would list")
    return Context(
        calls=PrintedCalls(out),
        name=name,
        region=region,
        engine=PrintedEngine(out),
        out=say_dry,
        say=say_dry,
        confirm=lambda _: True,
        clock=host.clock,
        sleep=host.sleep,
    )
