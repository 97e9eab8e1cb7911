"""transform: runs a batch transform job with the stack's model."""

import argparse
import re
from datetime import UTC, datetime
from typing import Any

from deploy import tagging
from deploy.calls import Reply
from deploy.context import Context
from deploy.endpoint import CLOCK_SKEW, DEFAULT_INSTANCE_TYPE
from deploy.environment import read_environment
from deploy.errors import DeployError, UsageError, one_line
from deploy.logs import TRANSFORM_LOGS, show_last
from deploy.stack import MODEL, owned
from deploy.waiting import wait

HELP = "run a batch transform job: from files in S3 to results in S3"
S3 = r"s3://[^/]+(/.*)?"
STRATEGIES = {"multi": "MultiRecord", "single": "SingleRecord"}
LINES, CSV = "application/jsonlines", "text/csv"
PENDING = ("InProgress", "Stopping")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--input", required=True, metavar="S3", help="file, or common prefix of the files' keys")
    parser.add_argument("--output", required=True, metavar="S3", help="folder for the results, each NAME.out")
    parser.add_argument(
        "--content-type", default=LINES, metavar="TYPE", help="type of the files (default: %(default)s)"
    )
    parser.add_argument(
        "--accept", metavar="TYPE", help="type of the results; default: JSON lines for lines (also of CSV), else JSON"
    )
    parser.add_argument("--split", choices=("line", "none"), help="default: line for JSON lines and CSV, else none")
    parser.add_argument("--strategy", choices=STRATEGIES, help="lines per request: many or one (default: multi)")
    parser.add_argument("--max-payload", type=int, metavar="MB", help="size of a request; default: the container's")
    parser.add_argument(
        "--max-concurrent", type=int, metavar="N", help="concurrent requests per instance; default: the container's"
    )
    parser.add_argument("--env", action="append", default=[], metavar="KEY=VALUE", help="a variable for the container")
    parser.add_argument("--instance-type", default=DEFAULT_INSTANCE_TYPE, metavar="TYPE", help="default: %(default)s")
    parser.add_argument("--instances", type=int, default=1, metavar="N", help="number of instances; default: 1")
    parser.add_argument("--kms-key", metavar="KEY", help="KMS key for the results and the instances' disks")
    tagging.configure(parser)
    parser.add_argument("--no-wait", action="store_true", help="return before the job has ended")


def run(arguments: argparse.Namespace, context: Context) -> None:
    """Starts the job with the stack's newest model and waits until it ends."""
    check(arguments)
    environment = read_environment(arguments.env, {"SAGEMAKER_BATCH": "true"})
    models = owned(context, MODEL)
    if not models:
        raise DeployError(f"'{context.name}' has no model in {context.region}: 'create --model-only' makes one")
    job = f"{context.name}-{datetime.fromtimestamp(context.clock(), UTC):%Y%m%d-%H%M%S}"
    context.say(f"starting transform job {job}")
    parameters = request(arguments, job, models[0], environment)
    context.calls.call("sagemaker", "CreateTransformJob", parameters | {"Tags": tagging.all_tags(context)})
    if arguments.no_wait:
        context.out(f"transform job {job} is running; its log: 'logs --transform {job}'")
        return
    _settle(context, job, arguments.output)


def check(options: argparse.Namespace) -> None:
    """Raises UsageError for options that SageMaker would refuse."""
    for name in ("input", "output"):
        if not re.fullmatch(S3, getattr(options, name)):
            raise UsageError(f"--{name} '{getattr(options, name)}' is not an S3 location: s3://BUCKET/KEY")
    if options.instances < 1:
        raise UsageError("--instances must be 1 or more")
    if options.max_payload is not None and not 0 <= options.max_payload <= 100:
        raise UsageError("--max-payload must be 0 to 100 MB")
    if (options.max_payload or 0) * (options.max_concurrent or 0) > 100:
        raise UsageError("--max-payload times --max-concurrent must be at most 100 MB")
    if options.strategy == "multi" and _split(options) == "None":
        raise UsageError("--strategy multi needs --split line: without it, a whole file is one request")


def request(options: argparse.Namespace, job: str, model: str, environment: dict[str, str]) -> dict[str, Any]:
    """CreateTransformJob's parameters."""
    split = _split(options)
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": options.input}}
    accept = options.accept or (LINES if split == "Line" else "application/json")
    optional = {
        "BatchStrategy": STRATEGIES.get(options.strategy or ("multi" if split == "Line" else "single")),
        "MaxPayloadInMB": options.max_payload,
        "MaxConcurrentTransforms": options.max_concurrent,
        "Environment": environment or None,
    }
    key, disks = ({name: options.kms_key} if options.kms_key else {} for name in ("KmsKeyId", "VolumeKmsKeyId"))
    return {
        "TransformJobName": job,
        "ModelName": model,
        "TransformInput": {"DataSource": source, "ContentType": options.content_type, "SplitType": split},
        "TransformOutput": {"S3OutputPath": options.output, "Accept": accept, "AssembleWith": split, **key},
        "TransformResources": {"InstanceType": options.instance_type, "InstanceCount": options.instances, **disks},
        **{key: value for key, value in optional.items() if value is not None},
    }


def _split(options: argparse.Namespace) -> str:
    lines = options.split == "line" if options.split else options.content_type.partition(";")[0] in (LINES, CSV)
    return "Line" if lines else "None"


def _settle(context: Context, job: str, output: str) -> None:
    since = context.clock() - CLOCK_SKEW

    def describe() -> Reply | None:
        assumed = {"TransformJobStatus": "Completed"}
        return context.calls.find("sagemaker", "DescribeTransformJob", {"TransformJobName": job}, assumed)

    reply = wait(context, f"transform job {job}", describe=describe, field="TransformJobStatus", pending=PENDING)
    status = reply["TransformJobStatus"]
    if status != "Completed":
        show_last(context, TRANSFORM_LOGS, since, job)
        reason = one_line(reply.get("FailureReason") or "AWS gives no reason")
        raise DeployError(f"the transform job {job} is {status}: {reason}")
    context.out(f"transform job {job} is done, the results are in {output}")
