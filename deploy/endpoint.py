"""Implements the commands `create`, `update`, `status` and `delete`, for an endpoint with its
configuration and its model."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deploy import autoscale, environment
from deploy.aws import Aws, Reply
from deploy.config import with_config
from deploy.errors import DeployError, UsageError, one_line
from deploy.options import Common, Delete, Endpoint
from deploy.specification import endpoint_config, model_name, request_to_recreate, untagged
from deploy.specification import model as model_request
from deploy.stack import KINDS, ensure, is_ours, names_in_stack, remove, say, tagged, tags, tags_of

CHANGING = ("Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting")


def create(options: Endpoint, aws: Aws) -> None:
    """Create the model, the endpoint configuration and the endpoint. Reuse those that already exist
    with the same content. Replace an endpoint that has failed. Raise DeployError if the endpoint
    exists with other settings and has not failed, if it does not have the stack's tags, or if it
    fails."""
    model = model_request(options, aws, {})
    config = endpoint_config(options, aws, {}, model["ModelName"])
    current = _describe(options, aws)
    if current:
        require_ours(options, aws, current)
        if current["EndpointStatus"] != "Failed":
            _wait_for_existing(options, aws, current, config)
            return
        aws.remove("sagemaker", "DeleteEndpoint", EndpointName=options.name)
        aws.wait("endpoint_deleted", options.name)
    names = {"EndpointName": options.name, "EndpointConfigName": config["EndpointConfigName"]}
    endpoint = tagged(options, with_config(aws, options.config, "CreateEndpoint", names))
    ensure(aws, "Model", model)
    ensure(aws, "EndpointConfig", config)
    say(f"creating endpoint {options.name}")
    aws.write("sagemaker", "CreateEndpoint", endpoint)
    _wait_until_served(options, aws, config)


def _wait_for_existing(options: Endpoint, aws: Aws, current: Reply, config: Reply) -> None:
    """Wait until an endpoint that exists already is in service. Raise DeployError if its
    configuration is not `config`."""
    if current["EndpointConfigName"] != config["EndpointConfigName"]:
        raise DeployError(
            f"the endpoint '{options.name}' exists with other settings: 'update' changes it"
        )
    say(f"the endpoint '{options.name}' exists already")
    _wait_until_served(options, aws, config)


def update(options: Endpoint, aws: Aws) -> None:
    """Change what the options and --config specify. Keep everything else, including the current
    number of instances. Once the endpoint serves the change, delete the stack's other
    configurations and models; --no-wait leaves them. Raise DeployError if the endpoint cannot be
    updated, or if the update fails."""
    endpoint = require(options, aws)
    _require_updatable(options, endpoint)
    current_config, current_model = _describe_content(aws, endpoint)
    options = replace(options, own_tags=_own_tags(options, aws, endpoint))
    new_model = _changed_model(options, aws, current_model)
    model = new_model or current_model
    old_config = request_to_recreate(aws, "CreateEndpointConfig", current_config)
    old_config = _with_current_instances(old_config, endpoint)
    config = endpoint_config(options, aws, old_config, model["ModelName"])
    if untagged(config, "EndpointConfigName") == old_config:
        aws.report(f"the endpoint '{options.name}' has these settings already")
        return
    names = {"EndpointName": options.name, "EndpointConfigName": config["EndpointConfigName"]}
    parameters = with_config(aws, options.config, "UpdateEndpoint", names)
    if new_model:
        ensure(aws, "Model", new_model)
    ensure(aws, "EndpointConfig", config)
    say(f"updating endpoint {options.name}")
    aws.write("sagemaker", "UpdateEndpoint", parameters)
    if _wait_until_served(options, aws, config):
        _remove_others(options, aws, "EndpointConfig", config["EndpointConfigName"])
        _remove_others(options, aws, "Model", model_name(config))


def _require_updatable(options: Endpoint, endpoint: Reply) -> None:
    """Raise DeployError if the endpoint's status does not allow an update."""
    if endpoint["EndpointStatus"] in (*CHANGING, "Failed"):
        raise DeployError(
            f"the endpoint '{options.name}' is {endpoint['EndpointStatus']}: 'create' "
            "replaces a failed one"
        )


def _describe_content(aws: Aws, endpoint: Reply) -> tuple[Reply, Reply]:
    """Return the descriptions of the endpoint's configuration and of its model."""
    config = aws.read(
        "sagemaker", "DescribeEndpointConfig", EndpointConfigName=endpoint["EndpointConfigName"]
    )
    model = aws.read("sagemaker", "DescribeModel", ModelName=model_name(config))
    return config, model


def _own_tags(options: Endpoint, aws: Aws, endpoint: Reply) -> list[dict[str, str]]:
    """Return the endpoint's tags, except the two that mark the resources of the stack."""
    stack_tags = tags(options)
    return [tag for tag in tags_of(aws, endpoint["EndpointArn"]) if tag not in stack_tags]


def _changed_model(options: Endpoint, aws: Aws, current: Reply) -> Reply | None:
    """Return the request that creates the changed model, or None if the model does not change."""
    old = request_to_recreate(aws, "CreateModel", current)
    new = model_request(options, aws, old)
    return new if untagged(new, "ModelName") != old else None


def _with_current_instances(config: Reply, endpoint: Reply) -> Reply:
    """Return the configuration with the number of instances that the endpoint has now, because
    autoscaling may have changed it."""
    states = endpoint.get("ProductionVariants", ())
    variants = [dict(variant) for variant in config["ProductionVariants"]]
    for variant, state in zip(variants, states, strict=False):
        count = state.get("DesiredInstanceCount")
        if count and "InitialInstanceCount" in variant:  # a serverless one has none
            variant["InitialInstanceCount"] = count
    return {**config, "ProductionVariants": variants}


def _remove_others(options: Endpoint, aws: Aws, kind: str, wanted: str) -> None:
    """Delete the stack's resources of this kind, except the one called `wanted`."""
    for name in names_in_stack(options, aws, kind):
        if name != wanted:
            remove(aws, kind, name)


def status(options: Common, aws: Aws) -> None:
    """Print what runs on the endpoint, one fact per line."""
    endpoint = require(options, aws)
    config, model = _describe_content(aws, endpoint)
    container = model["PrimaryContainer"]
    data_source = container.get("ModelDataSource", {}).get("S3DataSource", {})
    targets = autoscale.targets(aws, options.name)
    bounds = [f"{target['MinCapacity']} to {target['MaxCapacity']}" for target in targets]
    rows = {
        "endpoint": options.name,
        "status": endpoint["EndpointStatus"],
        "reason": one_line(endpoint.get("FailureReason", "")),
        "configuration": endpoint["EndpointConfigName"],
        "instances": _instances(config["ProductionVariants"][0], endpoint),
        "model": model["ModelName"],
        "image": container["Image"],
        "models": container.get("ModelDataUrl", data_source.get("S3Uri", "in the image")),
        "mode": container.get("Mode", "SingleModel"),
        "scaling": ", ".join(bounds),
    }
    lines = [(name, value) for name, value in rows.items() if value]
    variables = environment.masked(container.get("Environment", {}))
    lines += [("variable", f"{key}={value}") for key, value in variables.items()]
    for name, value in lines:
        print(f"{name:<13}  {value}")


def _instances(variant: Mapping[str, Any], endpoint: Mapping[str, Any]) -> str:
    if "ServerlessConfig" in variant:
        text = "serverless, {MemorySizeInMB} MB, {MaxConcurrency} concurrent"
        return text.format(**variant["ServerlessConfig"])
    state = endpoint.get("ProductionVariants", [{}])[0]
    count = state.get("CurrentInstanceCount", variant.get("InitialInstanceCount"))
    return f"{count}, {variant.get('InstanceType')}"


def delete(options: Delete, aws: Aws) -> None:
    """Delete the resources that have the stack's tags, after asking for confirmation (except with
    --yes or in a dry run). Keep the image, the files in S3 and the logs. Raise DeployError if the
    user does not confirm."""
    resources: list[tuple[str, str]] = []
    for kind in KINDS:
        resources += [(kind, name) for name in names_in_stack(options, aws, kind)]
    if not resources:
        say(f"nothing in {aws.region} has the tags of '{options.name}': there is nothing to delete")
        return
    say(f"to delete in {aws.region}:")
    for kind, name in resources:
        say(f"  {kind} {name}")
    if not (options.yes or aws.dry_run or _confirm("delete it?")):
        raise DeployError("nothing was deleted")
    for kind, name in resources:
        if kind == "Endpoint":
            autoscale.remove(aws, name)
        remove(aws, kind, name)
        if kind == "Endpoint":
            aws.wait("endpoint_deleted", name)
    aws.report(f"deleted {len(resources)} resources of '{options.name}'")


def require(options: Common, aws: Aws) -> Reply:
    """Return the description of the stack's endpoint. Raise DeployError if there is none, or if it
    does not have the stack's tags."""
    endpoint = _describe(options, aws)
    if not endpoint:
        raise DeployError(
            f"there is no endpoint '{options.name}' in {aws.region}: check --name and --region"
        )
    require_ours(options, aws, endpoint)
    return endpoint


def require_ours(options: Common, aws: Aws, endpoint: Reply) -> None:
    """Raise DeployError if the endpoint does not have the stack's tags."""
    if not is_ours(options, aws, endpoint["EndpointArn"]):
        raise DeployError(
            f"the endpoint '{options.name}' in {aws.region} does not have the tags "
            "created-by and stack, so this program did not make it and does not change it: "
            "choose another --name"
        )


def _describe(options: Common, aws: Aws) -> Reply | None:
    return aws.find("sagemaker", "DescribeEndpoint", EndpointName=options.name)


def _wait_until_served(options: Endpoint, aws: Aws, config: Reply) -> bool:
    """Wait until the endpoint serves `config`, and return True. Raise DeployError if the endpoint
    fails, or if AWS has rolled the update back. Do not wait in a dry run, which returns True, or
    with --no-wait, which returns False."""
    if aws.dry_run:
        return True
    if options.no_wait:
        return False
    say("waiting for the endpoint, which takes minutes")
    aws.wait("endpoint_in_service", options.name)
    endpoint = aws.read("sagemaker", "DescribeEndpoint", EndpointName=options.name)
    if endpoint["EndpointConfigName"] != config["EndpointConfigName"]:
        reason = one_line(endpoint.get("FailureReason") or "AWS gives no reason")
        raise DeployError(
            f"the update was rolled back, {endpoint['EndpointConfigName']} is still served: "
            f"{reason}"
        )
    print(f"the endpoint '{options.name}' is InService with {config['EndpointConfigName']}")
    return True


def _confirm(question: str) -> bool:
    """Return whether the user answers yes. Raise UsageError if there is no terminal to ask on."""
    if not sys.stdin.isatty():
        raise UsageError(
            "cannot ask for confirmation, because standard input is not a terminal: --yes confirms"
        )
    say(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
