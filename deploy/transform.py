"""transform: a batch transform job with the stack's model."""

import argparse
import re
from datetime import UTC, datetime
from typing import Any

from deploy.calls import Reply
from deploy.context import Context
from deploy.endpoint import CLOCK_SKEW, DEFAULT_INSTANCE_TYPE
from deploy.environment import read_environment
from deploy.errors import DeployError, UsageError, one_line
from deploy.logs import TRANSFORM_LOGS, show_last
from deploy.stack import MODEL, owned, tags
from deploy.waiting import wait

HELP = "run a batch transform job: files of S3 through the model, results into S3"
S3 = r"s3://[^/]+(/.*)?"
STRATEGIES = {"multi": "MultiRecord", "single": "SingleRecord"}
LINES = "application/jsonlines"
PENDING = ("InProgress", "Stopping")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--input", required=True, metavar="S3", help="file, or what the keys of the files begin with")
    parser.add_argument("--output", required=True, metavar="S3", help="folder of the results, NAME.out each")
    parser.add_argument("--content-type", default=LINES, metavar="TYPE", help="of the files (default: %(default)s)")
    parser.add_argument("--accept", metavar="TYPE", help="of the results; default: JSON lines for lines, else JSON")
    parser.add_argument("--split", choices=("line", "none"), help="default: line for JSON lines, else none")
    parser.add_argument("--strategy", choices=STRATEGIES, help="lines in a request: many or one (default: multi)")
    parser.add_argument("--max-payload", type=int, metavar="MB", help="of a request; default: what the container says")
    parser.add_argument("--max-concurrent", type=int, metavar="N", help="requests at once of an instance; likewise")
    parser.add_argument("--env", action="append", default=[], metavar="KEY=VALUE", help="a variable of the container")
    parser.add_argument("--instance-type", default=DEFAULT_INSTANCE_TYPE, metavar="TYPE", help="default: %(default)s")
    parser.add_argument("--instances", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--no-wait", action="store_true", help="return while the job is at work")


def run(arguments: argparse.Namespace, context: Context) -> None:
    """Starts the job with the stack's newest model and waits for its end."""
    check(arguments)
    environment = read_environment(arguments.env, {"SAGEMAKER_BATCH": "true"})
    models = owned(context, MODEL)
    if not models:
        raise DeployError(f"'{context.name}' has no model in {context.region}: 'create --model-only' makes one")
    job = f"{context.name}-{datetime.fromtimestamp(context.clock(), UTC):%Y%m%d-%H%M%S}"
    context.say(f"starting transform job {job}")
    parameters = request(arguments, job, models[0], environment)
    context.calls.call("sagemaker", "CreateTransformJob", parameters | {"Tags": tags(context.name)})
    if arguments.no_wait:
        context.out(f"transform job {job} is at work; its log: 'logs --transform {job}'")
        return
    _settle(context, job, arguments.output)


def check(options: argparse.Namespace) -> None:
    """Raises UsageError for options that SageMaker would refuse."""
    for name in ("input", "output"):
        if not re.fullmatch(S3, getattr(options, name)):
            raise UsageError(f"--{name} '{getattr(options, name)}' is no place in S3: s3://BUCKET/KEY")
    if options.instances < 1:
        raise UsageError("--instances must be 1 or more")
    if options.max_payload is not None and not 0 <= options.max_payload <= 100:
        raise UsageError("--max-payload must be 0 to 100 MB")
    if (options.max_payload or 0) * (options.max_concurrent or 0) > 100:
        raise UsageError("--max-payload times --max-concurrent must be at most 100 MB")
    if options.strategy == "multi" and _split(options) == "None":
        raise UsageError("--strategy multi needs --split line: without it a file is one request")


def request(options: argparse.Namespace, job: str, model: str, environment: dict[str, str]) -> dict[str, Any]:
    """CreateTransformJob's parameters. Without a strategy SageMaker sends as many lines as fit the payload."""
    split = _split(options)
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": options.input}}
    accept = options.accept or (LINES if split == "Line" else "application/json")
    optional = {
        "BatchStrategy": STRATEGIES.get(options.strategy or ("multi" if split == "Line" else "single")),
        "MaxPayloadInMB": options.max_payload,
        "MaxConcurrentTransforms": options.max_concurrent,
        "Environment": environment or None,
    }
    return {
        "TransformJobName": job,
        "ModelName": model,
        "TransformInput": {"DataSource": source, "ContentType": options.content_type, "SplitType": split},
        "TransformOutput": {"S3OutputPath": options.output, "Accept": accept, "AssembleWith": split},
        "TransformResources": {"InstanceType": options.instance_type, "InstanceCount": options.instances},
        **{key: value for key, value in optional.items() if value is not None},
    }


def _split(options: argparse.Namespace) -> str:
    lines = options.split == "line" if options.split else options.content_type == LINES
    return "Line" if lines else "None"


def _settle(context: Context, job: str, output: str) -> None:
    since = context.clock() - CLOCK_SKEW

    def describe() -> Reply | None:
        assumed = {"TransformJobStatus": "Completed"}
        return context.calls.find("sagemaker", "DescribeTransformJob", {"TransformJobName": job}, assumed)

    reply = wait(context, f"transform job {job}", describe, "TransformJobStatus", PENDING)
    status = reply["TransformJobStatus"]
    if status != "Completed":
        show_last(context, TRANSFORM_LOGS, since, job)
        reason = one_line(reply.get("FailureReason") or "AWS gives no reason")
        raise DeployError(f"the transform job {job} is {status}: {reason}")
    context.out(f"transform job {job} is done, the results are in {output}")
