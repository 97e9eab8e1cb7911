"""create: the model, the endpoint configuration and the endpoint."""

import argparse
import re
from typing import Any

from deploy import specification, tagging
from deploy.calls import Reply
from deploy.context import Context
from deploy.endpoint import PENDING, assumed_repository, describe, require_ours, settle
from deploy.environment import warnings
from deploy.errors import DeployError, UsageError
from deploy.stack import CONFIG, ENDPOINT, MODEL, PROJECT, Kind, remove
from deploy.waiting import wait

HELP = "create the model, the endpoint configuration and the endpoint"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    specification.configure(parser)
    parser.add_argument("--role", default=PROJECT, help="execution role: a name or an ARN (default: %(default)s)")
    parser.add_argument("--multi-model", metavar="S3", help="make a multi-model endpoint for the archives in s3://…/")
    parser.add_argument("--components", action="store_true", help="instances alone, for the models of 'component'")
    parser.add_argument("--model-only", action="store_true", help="create only the model, for batch transform")
    parser.add_argument("--network-isolation", action="store_true", help="run the container without a network")
    parser.add_argument("--subnet", action="append", default=[], metavar="ID", help="subnet of a VPC; repeatable")
    parser.add_argument("--security-group", action="append", default=[], metavar="ID", help="of the VPC; repeatable")
    asynchronous = parser.add_argument_group("asynchronous inference")
    asynchronous.add_argument("--async", dest="output", metavar="S3", help="asynchronous, with results in s3://…/")
    asynchronous.add_argument("--async-failures", metavar="S3", help="folder of the failures, s3://…/")
    asynchronous.add_argument("--async-concurrency", type=int, metavar="N", help="concurrent requests per instance")
    asynchronous.add_argument("--on-success", metavar="ARN", help="SNS topic that gets a message for each result")
    asynchronous.add_argument("--on-error", metavar="ARN", help="SNS topic that gets a message for each failure")


def run(arguments: argparse.Namespace, context: Context) -> None:
    """Creates what is missing; keeps existing resources with the same content."""
    check(arguments)
    if arguments.components:
        _create_instances(arguments, context)
        return
    specification.container(arguments, {}, "")  # reports mistakes before any call
    image = arguments.image or default_image(context, context.engine.version())
    container = specification.container(arguments, {}, image)
    for line in warnings(container.get("Environment", {})):
        context.say(f"warning: {line}")
    settings = {"ExecutionRoleArn": role_arn(context, arguments.role), **_network(arguments)}
    model = specification.model(context, container, settings)
    ensure(context, MODEL, model)
    if arguments.model_only:
        context.out(f"model {model['ModelName']}")
        return
    variant = specification.variant(arguments, {}, model["ModelName"])
    kept = specification.settings(arguments, _asynchronous(arguments))
    config = specification.config(context, [variant], kept)
    ensure(context, CONFIG, config)
    _ensure_endpoint(context, config["EndpointConfigName"])
    _finish(arguments, context, config["EndpointConfigName"])


def _create_instances(options: argparse.Namespace, context: Context) -> None:
    """An endpoint without a model. The role and the network are the configuration's, as there is no model for them."""
    settings = {"ExecutionRoleArn": role_arn(context, options.role), **_network(options)}
    kept = specification.settings(options, settings)
    config = specification.config(context, [specification.instances(options)], kept)
    ensure(context, CONFIG, config)
    _ensure_endpoint(context, config["EndpointConfigName"])
    _finish(options, context, config["EndpointConfigName"])


def check(options: argparse.Namespace) -> None:
    """Raises UsageError for options that SageMaker would refuse, alone or together."""
    specification.check(options)
    for name in ("multi_model", "output", "async_failures"):
        value = getattr(options, name)
        if value is not None and not re.fullmatch(specification.S3_FOLDER, value):
            raise UsageError(f"'{value}' is not an S3 folder: s3://BUCKET/PREFIX/")
    if options.multi_model and not options.multi_model.endswith("/"):
        raise UsageError(f"--multi-model '{options.multi_model}' must end with /: it is the folder of the archives")
    if bool(options.subnet) != bool(options.security_group):
        raise UsageError("--subnet and --security-group need each other")
    extras = (options.async_failures, options.async_concurrency, options.on_success, options.on_error)
    if any(extras) and not options.output:
        raise UsageError("--async-failures, --async-concurrency, --on-success and --on-error need --async")
    _check_modes(options)


def _check_modes(options: argparse.Namespace) -> None:
    if options.multi_model and options.model_data:
        raise UsageError("--multi-model and --model-data exclude each other: the archives lie below --multi-model")
    if options.multi_model and options.output:
        raise UsageError("--multi-model and --async exclude each other: InvokeEndpointAsync has no TargetModel")
    if options.components:
        _check_components(options)
    if options.serverless is None:
        return
    for name, value in {
        "multi-model": options.multi_model,
        "async": options.output,
        "subnet": options.subnet,
        "network-isolation": options.network_isolation,
    }.items():
        if value:
            raise UsageError(f"--serverless and --{name} exclude each other: serverless inference has no --{name}")


def _check_components(options: argparse.Namespace) -> None:
    of_container = ("image", "model_data", "multi_model", "output", "env", "health_timeout", "download_timeout")
    for name in (*of_container, "serverless", "model_only", "data_capture"):
        if getattr(options, name):
            flag = "async" if name == "output" else name.replace("_", "-")
            raise UsageError(
                f"--components and --{flag} exclude each other: such an endpoint has instances alone, and 'component' "
                "says image, models and settings of each"
            )


def default_image(context: Context, tag: str) -> str:
    """The URI of the repository's image with that tag; raises DeployError when there is no repository."""
    assumed = {"repositories": [{"repositoryUri": assumed_repository(context)}]}
    found = context.calls.find("ecr", "DescribeRepositories", {"repositoryNames": [PROJECT]}, assumed)
    if not found:
        raise DeployError(f"ECR has no repository '{PROJECT}' in {context.region}: run 'push' first, or give --image")
    return f"{found['repositories'][0]['repositoryUri']}:{tag}"


def role_arn(context: Context, role: str) -> str:
    """The ARN of a role, given its name or its ARN."""
    if role.startswith("arn:"):
        return role
    assumed = {"Role": {"Arn": f"arn:{context.partition.id}:iam::123456789012:role/{role}"}}
    found = context.calls.find("iam", "GetRole", {"RoleName": role}, assumed)
    if not found:
        raise DeployError(f"there is no role '{role}': docs/deploy.md says how to make it; --role names another")
    arn: str = found["Role"]["Arn"]
    return arn


def ensure(context: Context, kind: Kind, parameters: Reply) -> None:
    """Creates the resource unless it exists; its name depends on its content."""
    key = f"{kind.word}Name"
    if context.calls.find("sagemaker", f"Describe{kind.word}", {key: parameters[key]}):
        context.say(f"{kind.label} {parameters[key]} exists already")
        return
    context.say(f"creating {kind.label} {parameters[key]}")
    context.calls.call("sagemaker", f"Create{kind.word}", parameters)


def _ensure_endpoint(context: Context, config: str) -> None:
    """Creates the endpoint; first deletes one whose creation failed, because it cannot be repaired."""
    found = describe(context, None)
    if found:
        require_ours(context, found)
        status = found["EndpointStatus"]
        if status != "Failed" and found["EndpointConfigName"] == config:
            context.say(f"endpoint {context.name} exists already")
            return
        if status != "Failed":
            raise DeployError(f"the endpoint '{context.name}' exists with other settings: 'update' changes it")
        remove(context, ENDPOINT, context.name)
        wait(
            context,
            f"endpoint {context.name}",
            describe=lambda: describe(context, None),
            field="EndpointStatus",
            pending=(*PENDING, "Failed"),
        )
    context.say(f"creating endpoint {context.name}")
    parameters = {"EndpointName": context.name, "EndpointConfigName": config, "Tags": tagging.all_tags(context)}
    context.calls.call("sagemaker", "CreateEndpoint", parameters)


def _finish(arguments: argparse.Namespace, context: Context, config: str) -> None:
    if arguments.no_wait:
        context.out(f"endpoint {context.name} is being created; 'status' shows the progress")
        return
    settle(context, config)
    context.out(f"endpoint {context.name} is InService")


def _network(options: argparse.Namespace) -> dict[str, Any]:
    vpc = {"SecurityGroupIds": options.security_group, "Subnets": options.subnet}
    return {"EnableNetworkIsolation": options.network_isolation} | ({"VpcConfig": vpc} if options.subnet else {})


def _asynchronous(options: argparse.Namespace) -> dict[str, Any]:
    """CreateEndpointConfig's AsyncInferenceConfig, or nothing."""
    if not options.output:
        return {}
    topics = {"SuccessTopic": options.on_success, "ErrorTopic": options.on_error}
    given = {key: value for key, value in topics.items() if value}
    output = {"S3OutputPath": options.output} | ({"NotificationConfig": given} if given else {})
    if options.async_failures:
        output["S3FailurePath"] = options.async_failures
    client = {"MaxConcurrentInvocationsPerInstance": options.async_concurrency} if options.async_concurrency else {}
    return {"AsyncInferenceConfig": {"OutputConfig": output} | ({"ClientConfig": client} if client else {})}
