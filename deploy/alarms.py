"""The CloudWatch alarms that roll back an update, and the one that starts the first instance of an asynchronous
endpoint."""

from collections.abc import Mapping
from typing import Any

from deploy.context import Context
from deploy.errors import DeployError
from deploy.stack import VARIANT, is_ours, tags

PERIOD = 60  # seconds, the finest resolution of SageMaker's metrics
# {suffix of the alarm's name: (metric, statistic)}. 5XX errors are 0 or 1 per invocation, so their average is a share.
METRICS: dict[str, tuple[str, dict[str, str]]] = {
    "5xx": ("Invocation5XXErrors", {"Statistic": "Average"}),
    "latency": ("ModelLatency", {"ExtendedStatistic": "p99"}),
}
BACKLOG = "backlog"  # the suffix of the other one


def alarm_name(name: str, suffix: str) -> str:
    """The name of one of the stack's alarms."""
    return f"{name}-{suffix}" if suffix == BACKLOG else f"{name}-rollback-{suffix}"


def make(context: Context, thresholds: Mapping[str, float]) -> list[str]:
    """Creates or updates the alarms; returns their names. `thresholds` by suffix: a share from 0 to 1, microseconds."""
    names = [alarm_name(context.name, suffix) for suffix in thresholds]
    for alarm in describe(context, names, []):
        if not _has_tags(context, alarm["AlarmArn"]):
            raise DeployError(
                f"the alarm {alarm['AlarmName']} was not made by this program: name your own alarms with --alarm"
            )
    for suffix, threshold in thresholds.items():
        context.calls.call("cloudwatch", "PutMetricAlarm", parameters(context.name, suffix, threshold))
    return names


def parameters(name: str, suffix: str, threshold: float) -> dict[str, Any]:
    """PutMetricAlarm's parameters: one minute above the threshold rings the alarm, a minute without calls does not."""
    metric, statistic = METRICS[suffix]
    return {
        "AlarmName": alarm_name(name, suffix),
        "AlarmDescription": f"rolls back an update of the endpoint {name}",
        "Namespace": "AWS/SageMaker",
        "MetricName": metric,
        "Dimensions": [{"Name": "EndpointName", "Value": name}, {"Name": "VariantName", "Value": VARIANT}],
        "Period": PERIOD,
        "EvaluationPeriods": 1,
        "Threshold": threshold,
        "ComparisonOperator": "GreaterThanThreshold",
        "TreatMissingData": "notBreaching",
        "Tags": tags(name),
        **statistic,
    }


def of_backlog(context: Context, policy: str) -> dict[str, Any]:
    """PutMetricAlarm's parameters: two minutes with waiting requests and no instance call the scaling policy."""
    return {
        "AlarmName": alarm_name(context.name, BACKLOG),
        "AlarmDescription": f"starts the first instance of the endpoint {context.name}",
        "Namespace": "AWS/SageMaker",
        "MetricName": "HasBacklogWithoutCapacity",
        "Dimensions": [{"Name": "EndpointName", "Value": context.name}],
        "Statistic": "Average",
        "Period": PERIOD,
        "EvaluationPeriods": 2,
        "DatapointsToAlarm": 2,
        "Threshold": 1.0,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "TreatMissingData": "missing",
        "AlarmActions": [policy],
        "Tags": tags(context.name),
    }


def describe(context: Context, names: list[str], assumed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The alarms with these names that exist."""
    return context.calls.pages("cloudwatch", "DescribeAlarms", {"AlarmNames": names}, "MetricAlarms", assumed)


def owned(context: Context) -> list[str]:
    """Names of the stack's alarms."""
    names = [alarm_name(context.name, suffix) for suffix in (*METRICS, BACKLOG)]
    assumed = [{"AlarmName": each, "AlarmArn": _assumed_arn(context, each)} for each in names[: len(METRICS)]]
    found = describe(context, names, assumed)
    return [alarm["AlarmName"] for alarm in found if _has_tags(context, alarm["AlarmArn"])]


def _assumed_arn(context: Context, alarm: str) -> str:
    return f"arn:{context.partition.id}:cloudwatch:{context.region}:123456789012:alarm:{alarm}"


def _has_tags(context: Context, arn: str) -> bool:
    reply = context.calls.call("cloudwatch", "ListTagsForResource", {"ResourceARN": arn}, {"Tags": tags(context.name)})
    return is_ours(reply["Tags"], context.name)
