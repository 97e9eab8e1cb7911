"""Builds the requests of the command `autoscale`, after which AWS adjusts the number of instances
to the load (target tracking). Also lists and removes an endpoint's scaling."""

from typing import Any

from deploy.aws import Aws, Reply

SERVICE = "application-autoscaling"
DIMENSION = "sagemaker:variant:DesiredInstanceCount"
INVOCATIONS = "SageMakerVariantInvocationsPerInstance"
CONCURRENCY = "SageMakerVariantConcurrentRequestsPerModelHighResolution"


def variant(name: str) -> Reply:
    """Return the fields that identify the endpoint's variant for Application Auto Scaling."""
    return {
        "ServiceNamespace": "sagemaker",
        "ResourceId": f"endpoint/{name}/variant/AllTraffic",
        "ScalableDimension": DIMENSION,
    }


def policy(name: str, metric: str, value: float) -> Reply:
    """Return the parameters of PutScalingPolicy. The name of the policy does not depend on the
    metric, so that a new policy replaces the old one."""
    return {
        **variant(name),
        "PolicyName": f"{name}-target-tracking",
        "PolicyType": "TargetTrackingScaling",
        "TargetTrackingScalingPolicyConfiguration": {
            "TargetValue": value,
            "PredefinedMetricSpecification": {"PredefinedMetricType": metric},
            "ScaleInCooldown": 600,
            "ScaleOutCooldown": 300,
        },
    }


def targets(aws: Aws, name: str) -> list[Any]:
    """Return the variant's scalable target in a list, or [] if autoscaling is off."""
    return aws.list(
        SERVICE,
        "DescribeScalableTargets",
        "ScalableTargets",
        ServiceNamespace="sagemaker",
        ResourceIds=[variant(name)["ResourceId"]],
    )


def remove(aws: Aws, name: str) -> bool:
    """Remove the variant's policies and its scalable target. Return whether there was a target."""
    was_scaled = bool(targets(aws, name))
    policies = aws.list(SERVICE, "DescribeScalingPolicies", "ScalingPolicies", **variant(name))
    for policy in policies:
        aws.remove(SERVICE, "DeleteScalingPolicy", **variant(name), PolicyName=policy["PolicyName"])
    if was_scaled:
        aws.remove(SERVICE, "DeregisterScalableTarget", **variant(name))
    return was_scaled
