"""The stack's endpoint: its current state, and waiting until a change is done."""

from typing import Any

from deploy.calls import Reply
from deploy.context import Context
from deploy.errors import DeployError, one_line
from deploy.logs import ENDPOINT_LOGS, show_last
from deploy.stack import ASSUMED_DIGEST, ENDPOINT, PROJECT, VARIANT, arn, has_tags
from deploy.waiting import wait

PENDING = ("Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting")
IN_SERVICE = "InService"
CLOCK_SKEW = 60.0  # seconds that this machine's clock may be ahead of the container's
DEFAULT_INSTANCE_TYPE = "ml.c5.xlarge"


def assumed_config_name(context: Context) -> str:
    """The configuration name of the endpoint that a dry run assumes."""
    return f"{context.name}-{ASSUMED_DIGEST}"


def assumed_endpoint(context: Context, config: str) -> Reply:
    """The endpoint that a dry run assumes."""
    return {
        "EndpointName": context.name,
        "EndpointArn": arn(context, ENDPOINT, context.name),
        "EndpointConfigName": config,
        "EndpointStatus": IN_SERVICE,
    }


def assumed_config(context: Context) -> Reply:
    """The endpoint configuration that a dry run assumes."""
    variant = {"VariantName": VARIANT, "ModelName": assumed_config_name(context)}
    return {"ProductionVariants": [variant | {"InstanceType": DEFAULT_INSTANCE_TYPE, "InitialInstanceCount": 1}]}


def assumed_model(context: Context) -> Reply:
    """The model that a dry run assumes."""
    role = f"arn:{context.partition.id}:iam::123456789012:role/{PROJECT}"
    return {"PrimaryContainer": {"Image": assumed_repository(context) + ":current"}, "ExecutionRoleArn": role}


def assumed_repository(context: Context) -> str:
    """The ECR repository that a dry run assumes."""
    return f"123456789012.dkr.ecr.{context.region}.{context.partition.suffix}/{PROJECT}"


def describe(context: Context, assumed: Reply | None) -> Reply | None:
    """DescribeEndpoint's reply; None when there is no such endpoint."""
    return context.calls.find("sagemaker", "DescribeEndpoint", {"EndpointName": context.name}, assumed)


def require(context: Context) -> Reply:
    """The stack's endpoint; raises DeployError when there is none or another program made it."""
    found = describe(context, assumed_endpoint(context, assumed_config_name(context)))
    if not found:
        raise DeployError(
            f"there is no endpoint '{context.name}' in {context.region}: "
            "'create' makes one, --name and --region choose another"
        )
    require_ours(context, found)
    return found


def require_ours(context: Context, found: Reply) -> None:
    """Raises DeployError when the endpoint does not have the stack's tags."""
    if not has_tags(context, found["EndpointArn"]):
        raise DeployError(
            f"the endpoint '{context.name}' in {context.region} was not made by this program (it does not have the "
            "tags created-by and stack), so it is not changed: choose another --name"
        )


def read_config(context: Context, name: str) -> Reply:
    """DescribeEndpointConfig's reply."""
    return context.calls.call(
        "sagemaker", "DescribeEndpointConfig", {"EndpointConfigName": name}, assumed_config(context)
    )


def only_variant(config: Reply) -> dict[str, Any]:
    """The configuration's only production variant."""
    variant: dict[str, Any] = config["ProductionVariants"][0]
    return variant


def has_components(config: Reply) -> bool:
    """Whether the endpoint has instances alone, and its models are inference components."""
    return not {"ModelName", "ServerlessConfig"} & only_variant(config).keys()


def refuse_components(config: Reply) -> None:
    """Raises DeployError for an endpoint of inference components, where a command is for one container."""
    if has_components(config):
        raise DeployError(
            "the endpoint's models are inference components: 'component' changes image, models and copies"
        )


def settle(context: Context, expected_config: str) -> None:
    """Waits until the endpoint serves `expected_config`.

    If it does not, prints the container's last log lines and raises DeployError.
    """
    since = context.clock() - CLOCK_SKEW
    assumed = assumed_endpoint(context, expected_config)
    reply = wait(
        context,
        f"endpoint {context.name}",
        describe=lambda: describe(context, assumed),
        field="EndpointStatus",
        pending=PENDING,
    )
    served, status = reply.get("EndpointConfigName"), reply["EndpointStatus"]
    if status == IN_SERVICE and served == expected_config:
        return
    show_last(context, ENDPOINT_LOGS + context.name, since)
    reason = one_line(reply.get("FailureReason") or "AWS gives no reason")
    if status == IN_SERVICE:
        raise DeployError(f"the update was rolled back, {served} is still served: {reason}")
    raise DeployError(f"the endpoint '{context.name}' is {status}: {reason}")
