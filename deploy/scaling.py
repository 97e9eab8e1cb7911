"""autoscale: scales the number of instances by target tracking; of an asynchronous endpoint down to none."""

import argparse
from typing import Any

from deploy import alarms
from deploy.context import Context
from deploy.endpoint import assumed_config, only_variant, refuse_components, require
from deploy.errors import DeployError, UsageError
from deploy.stack import ACCOUNT, VARIANT

HELP = "scale the number of instances with the load; --remove to stop"
SERVICE = "application-autoscaling"
DIMENSION = "sagemaker:variant:DesiredInstanceCount"
PER_INSTANCE = "SageMakerVariantInvocationsPerInstance"
BACKLOG_METRIC, BACKLOG = "ApproximateBacklogSizePerInstance", 5.0
UNKNOWN = "00000000-0000-0000-0000-000000000000"  # in an ARN that a dry run assumes
CONCURRENCY = "SageMakerVariantConcurrentRequestsPerModelHighResolution"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--min", type=int, default=1, metavar="N", help="fewest; 0: of an asynchronous endpoint (default: 1)"
    )
    parser.add_argument("--max", type=int, default=4, metavar="N", help="most instances (default: 4)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--invocations", type=float, metavar="N", help="target: calls a minute per instance (default: 70)"
    )
    what.add_argument("--concurrency", type=float, metavar="N", help="target: concurrent requests; reacts in seconds")
    what.add_argument(
        "--backlog",
        type=float,
        metavar="N",
        help="target: waiting requests per instance, asynchronous (default there: 5)",
    )
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
    is_asynchronous = _is_asynchronous(arguments, context)
    if is_asynchronous and not (arguments.invocations or arguments.concurrency):
        arguments.backlog = arguments.backlog or BACKLOG
    context.calls.call(SERVICE, "RegisterScalableTarget", target(context.name) | _bounds(arguments))
    context.calls.call(SERVICE, "PutScalingPolicy", target(context.name) | _policy(arguments, context.name))
    if is_asynchronous:
        _from_zero(arguments, context)
    context.out(f"endpoint {context.name} scales from {arguments.min} to {arguments.max} instances by its load")


def _is_asynchronous(options: argparse.Namespace, context: Context) -> bool:
    """Raises DeployError for what the endpoint cannot; a dry run assumes the endpoint that the options are for."""
    for_asynchronous = options.min == 0 or options.backlog is not None
    assumed = assumed_config(context) | ({"AsyncInferenceConfig": {}} if for_asynchronous else {})
    name = {"EndpointConfigName": require(context)["EndpointConfigName"]}
    config = context.calls.call("sagemaker", "DescribeEndpointConfig", name, assumed)
    refuse_components(config)
    if "ServerlessConfig" in only_variant(config):
        raise DeployError("a serverless endpoint scales by itself: 'update --max-concurrency' sets its limit")
    if for_asynchronous and "AsyncInferenceConfig" not in config:
        raise DeployError(
            "--min 0 and --backlog are for an asynchronous endpoint (create --async): others keep one instance"
        )
    return "AsyncInferenceConfig" in config


def _from_zero(options: argparse.Namespace, context: Context) -> None:
    """Without an instance there is no backlog per instance, so a first request starts the first one by an alarm."""
    if options.min > 0:
        context.calls.find(
            SERVICE, "DeleteScalingPolicy", target(context.name) | {"PolicyName": zero_name(context.name)}
        )
        context.calls.find("cloudwatch", "DeleteAlarms", {"AlarmNames": [zero_name(context.name)]})
        return
    assumed = {"PolicyARN": _assumed_policy(context)}
    step = target(context.name) | _step(options, context.name)
    made = context.calls.call(SERVICE, "PutScalingPolicy", step, assumed)
    context.calls.call("cloudwatch", "PutMetricAlarm", alarms.of_backlog(context, made["PolicyARN"]))


def _assumed_policy(context: Context) -> str:
    place = f"arn:{context.partition.id}:autoscaling:{context.region}:{ACCOUNT}:scalingPolicy:{UNKNOWN}"
    return f"{place}:resource/sagemaker/{target(context.name)['ResourceId']}:policyName/{zero_name(context.name)}"


def check(options: argparse.Namespace) -> None:
    """Raises UsageError for impossible options."""
    if not 0 <= options.min <= options.max or options.max < 1:
        raise UsageError("--min must be 0 or more, and --max 1 or more and at least --min")
    for name in ("invocations", "concurrency", "backlog"):
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


def zero_name(name: str) -> str:
    """The name of the policy and of the alarm that start the first instance."""
    return alarms.alarm_name(name, alarms.BACKLOG)


def remove(context: Context) -> bool:
    """Removes the policies and the target; returns False when there was no target."""
    for name in policies(context):
        context.say(f"deleting scaling policy {name}")
        context.calls.find(SERVICE, "DeleteScalingPolicy", target(context.name) | {"PolicyName": name})
        if name == zero_name(context.name):
            context.calls.find("cloudwatch", "DeleteAlarms", {"AlarmNames": [name]})
    if not targets(context, [target(context.name)]):
        return False
    context.calls.find(SERVICE, "DeregisterScalableTarget", target(context.name))
    return True


def _bounds(options: argparse.Namespace) -> dict[str, int]:
    return {"MinCapacity": options.min, "MaxCapacity": options.max}


def _policy(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """PutScalingPolicy's parameters, without those of `target`."""
    return {
        "PolicyName": policy_name(name),
        "PolicyType": "TargetTrackingScaling",
        "TargetTrackingScalingPolicyConfiguration": {
            **_metric(options, name),
            "ScaleInCooldown": options.scale_in_cooldown,
            "ScaleOutCooldown": options.scale_out_cooldown,
        },
    }


def _metric(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """What is tracked, and its target."""
    if options.backlog:
        dimensions = [{"Name": "EndpointName", "Value": name}]
        tracked = {"MetricName": BACKLOG_METRIC, "Namespace": "AWS/SageMaker", "Dimensions": dimensions}
        return {"TargetValue": options.backlog, "CustomizedMetricSpecification": tracked | {"Statistic": "Average"}}
    metric, value = (CONCURRENCY, options.concurrency) if options.concurrency else (PER_INSTANCE, options.invocations)
    return {"TargetValue": value or 70.0, "PredefinedMetricSpecification": {"PredefinedMetricType": metric}}


def _step(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """One instance more while the alarm rings."""
    return {
        "PolicyName": zero_name(name),
        "PolicyType": "StepScaling",
        "StepScalingPolicyConfiguration": {
            "AdjustmentType": "ChangeInCapacity",
            "MetricAggregationType": "Average",
            "Cooldown": options.scale_out_cooldown,
            "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
        },
    }
