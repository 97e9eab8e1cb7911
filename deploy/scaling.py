"""autoscale: scales the number of instances by target tracking."""

import argparse
from typing import Any

from deploy.context import Context
from deploy.endpoint import only_variant, read_config, require
from deploy.errors import DeployError, UsageError
from deploy.stack import VARIANT

HELP = "scale the number of instances with the load; --remove to stop"
SERVICE = "application-autoscaling"
DIMENSION = "sagemaker:variant:DesiredInstanceCount"
PER_INSTANCE = "SageMakerVariantInvocationsPerInstance"
CONCURRENCY = "SageMakerVariantConcurrentRequestsPerModelHighResolution"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--min", type=int, default=1, metavar="N", help="fewest instances (default: 1)")
    parser.add_argument("--max", type=int, default=4, metavar="N", help="most instances (default: 4)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--invocations", type=float, metavar="N", help="target: calls a minute per instance (default: 70)"
    )
    what.add_argument("--concurrency", type=float, metavar="N", help="target: concurrent requests; reacts in seconds")
    what.add_argument("--remove", action="store_true", help="stop scaling and keep the current number of instances")
    parser.add_argument("--scale-in-cooldown", type=int, default=600, metavar="S", help="default: 600 seconds")
    parser.add_argument("--scale-out-cooldown", type=int, default=300, metavar="S", help="default: 300 seconds")


def run(arguments: argparse.Namespace, context: Context) -> None:
    """Registers the endpoint's variant and its policy, or removes both."""
    check(arguments)
    if arguments.remove:
        removed = remove(context)
        context.out(f"endpoint {context.name} is {'no longer' if removed else 'not'} scaled")
        return
    config = read_config(context, require(context)["EndpointConfigName"])
    if "ServerlessConfig" in only_variant(config):
        raise DeployError("a serverless endpoint scales by itself: 'update --max-concurrency' sets its limit")
    context.calls.call(SERVICE, "RegisterScalableTarget", target(context.name) | _bounds(arguments))
    context.calls.call(SERVICE, "PutScalingPolicy", target(context.name) | _policy(arguments, context.name))
    context.out(f"endpoint {context.name} scales from {arguments.min} to {arguments.max} instances by its load")


def check(options: argparse.Namespace) -> None:
    """Raises UsageError for impossible options."""
    if not 1 <= options.min <= options.max:
        raise UsageError("--min must be 1 or more, and --max at least --min (such an endpoint cannot scale to zero)")
    for name in ("invocations", "concurrency"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise UsageError(f"--{name} must be above 0")
    if min(options.scale_in_cooldown, options.scale_out_cooldown) < 0:
        raise UsageError("a cooldown cannot be negative")


def target(name: str) -> dict[str, Any]:
    """The fields that identify the variant for Application Auto Scaling."""
    resource = f"endpoint/{name}/variant/{VARIANT}"
    return {"ServiceNamespace": "sagemaker", "ResourceId": resource, "ScalableDimension": DIMENSION}


def targets(context: Context, assumed: list[dict[str, Any]]) -> list[Any]:
    """The variant's scalable target in a list; empty when it has none."""
    where = target(context.name)
    query = {"ServiceNamespace": "sagemaker", "ResourceIds": [where["ResourceId"]], "ScalableDimension": DIMENSION}
    return context.calls.pages(SERVICE, "DescribeScalableTargets", query, "ScalableTargets", assumed)


def policies(context: Context) -> list[str]:
    """Names of the variant's scaling policies."""
    assumed = [{"PolicyName": policy_name(context.name)}]
    found = context.calls.pages(SERVICE, "DescribeScalingPolicies", target(context.name), "ScalingPolicies", assumed)
    return [policy["PolicyName"] for policy in found]


def policy_name(name: str) -> str:
    """The name of `autoscale`'s policy; it is the same for every metric, so a new metric replaces the old policy."""
    return f"{name}-target-tracking"


def remove(context: Context) -> bool:
    """Removes the policies and the target; returns False when there was no target."""
    for name in policies(context):
        context.say(f"deleting scaling policy {name}")
        context.calls.find(SERVICE, "DeleteScalingPolicy", target(context.name) | {"PolicyName": name})
    if not targets(context, [target(context.name)]):
        return False
    context.calls.find(SERVICE, "DeregisterScalableTarget", target(context.name))
    return True


def _bounds(options: argparse.Namespace) -> dict[str, int]:
    return {"MinCapacity": options.min, "MaxCapacity": options.max}


def _policy(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """PutScalingPolicy's parameters, without those of `target`."""
    metric, value = (CONCURRENCY, options.concurrency) if options.concurrency else (PER_INSTANCE, options.invocations)
    return {
        "PolicyName": policy_name(name),
        "PolicyType": "TargetTrackingScaling",
        "TargetTrackingScalingPolicyConfiguration": {
            "TargetValue": value or 70.0,
            "PredefinedMetricSpecification": {"PredefinedMetricType": metric},
            "ScaleInCooldown": options.scale_in_cooldown,
            "ScaleOutCooldown": options.scale_out_cooldown,
        },
    }
