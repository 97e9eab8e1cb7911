"""autoscale: more and fewer instances, by target tracking."""

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
    parser.add_argument("--min", type=int, default=1, metavar="N", help="instances at least (default: 1)")
    parser.add_argument("--max", type=int, default=4, metavar="N", help="instances at most (default: 4)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--invocations", type=float, metavar="N", help="aim: calls per minute and instance (default: 70)")
    what.add_argument("--concurrency", type=float, metavar="N", help="aim: requests at once; reacts within seconds")
    what.add_argument("--remove", action="store_true", help="stop scaling; the instances stay as many as they are")
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
    context.out(f"endpoint {context.name} has {arguments.min} to {arguments.max} instances, as its load asks for")


def check(options: argparse.Namespace) -> None:
    """Raises UsageError for options that make no sense."""
    if not 1 <= options.min <= options.max:
        raise UsageError("--min must be 1 or more, and --max no less (an endpoint of this kind does not scale to zero)")
    for name in ("invocations", "concurrency"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise UsageError(f"--{name} must be above 0")
    if min(options.scale_in_cooldown, options.scale_out_cooldown) < 0:
        raise UsageError("a cooldown cannot be negative")


def target(name: str) -> dict[str, Any]:
    """What names the variant to Application Auto Scaling."""
    resource = f"endpoint/{name}/variant/{VARIANT}"
    return {"ServiceNamespace": "sagemaker", "ResourceId": resource, "ScalableDimension": DIMENSION}


def targets(context: Context, assumed: list[dict[str, Any]]) -> list[Any]:
    """The variant as a scalable target, where it is one."""
    where = target(context.name)
    query = {"ServiceNamespace": "sagemaker", "ResourceIds": [where["ResourceId"]], "ScalableDimension": DIMENSION}
    return context.calls.pages(SERVICE, "DescribeScalableTargets", query, "ScalableTargets", assumed)


def policies(context: Context) -> list[str]:
    """Names of the variant's scaling policies."""
    assumed = [{"PolicyName": policy_name(context.name)}]
    found = context.calls.pages(SERVICE, "DescribeScalingPolicies", target(context.name), "ScalingPolicies", assumed)
    return [policy["PolicyName"] for policy in found]


def policy_name(name: str) -> str:
    """The one policy that `autoscale` makes, whatever its metric: another metric replaces it."""
    return f"{name}-target-tracking"


def remove(context: Context) -> bool:
    """Removes policies and target; False when there is no target."""
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
    """PutScalingPolicy's parameters beside the target."""
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
