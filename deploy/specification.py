"""Builds the requests for CreateModel and CreateEndpointConfig, by changing the current state as
the options and --config say."""

import hashlib
import json
import re
from typing import Any

from deploy import environment
from deploy.aws import Aws, Reply
from deploy.config import with_config
from deploy.errors import DeployError, UsageError
from deploy.options import PROJECT, Endpoint
from deploy.stack import git_version, say, tagged

VARIANT = {"VariantName": "AllTraffic", "InitialInstanceCount": 1, "InstanceType": "ml.c5.xlarge"}
GPU_TYPE = re.compile(r"ml\.[gp]\d")
NEEDED_DRIVER = 580  # the NVIDIA driver version that the gpu image needs
# Maps a host image to the NVIDIA driver version that it contains, according to AWS's documentation
# of ProductionVariant.InferenceAmiVersion. None is the default image. The newest comes last.
DRIVERS = {
    None: 470,
    "al2-ami-sagemaker-inference-gpu-2": 535,
    "al2-ami-sagemaker-inference-gpu-2-1": 535,
    "al2-ami-sagemaker-inference-gpu-3-1": 550,
    "al2023-ami-sagemaker-inference-gpu-4-1": 580,
}


def model(options: Endpoint, aws: Aws, base: Reply) -> Reply:
    """Return the request for CreateModel, which is `base` changed by the options and --config.
    `base` is the request that would recreate the current model, or {} if there is none."""
    container = _with_model_data(options, base.get("PrimaryContainer", {}))
    if options.image or not base:
        container["Image"] = options.image or _default_image(aws)
    variables = {**container.get("Environment", {}), **environment.parse(options.env)}
    if variables:
        container["Environment"] = variables
    role = base.get("ExecutionRoleArn") or _role_arn(aws, options.role)
    parameters = {**base, "ExecutionRoleArn": role, "PrimaryContainer": container}
    model = _named(options, aws, "Model", parameters)
    _warn_of_variables(model["PrimaryContainer"])
    return model


def _with_model_data(options: Endpoint, container: Reply) -> dict[str, Any]:
    """Return a copy of the ContainerDefinition. If the options name model data, it replaces that of
    the container. Raise UsageError if they have both --model-data and --multi-model."""
    if options.model_data and options.multi_model:
        raise UsageError("give one of --model-data and --multi-model")
    if options.multi_model:
        return {**container, "Mode": "MultiModel", "ModelDataUrl": options.multi_model}
    if options.model_data:
        # the keys that say where the models come from begin with "Mode": Mode, ModelDataUrl,
        # ModelDataSource, ModelPackageName
        rest = {key: value for key, value in container.items() if not key.startswith("Mode")}
        return rest | _model_data(options.model_data)
    return dict(container)


def _warn_of_variables(container: Reply) -> None:
    """Warn about environment variables that look like a misspelled setting. Raise UsageError for a
    value with which the container would not start."""
    is_multi_model = container.get("Mode") == "MultiModel"
    for warning in environment.check(container.get("Environment", {}), is_multi_model):
        say(f"warning: {warning}")


def endpoint_config(options: Endpoint, aws: Aws, base: Reply, model: str) -> Reply:
    """Return the request for CreateEndpointConfig, which is `base` changed by the options and
    --config. `base` is the request that would recreate the current configuration, or {} if there is
    none. `model` is the name of the model to serve."""
    first, *others = base.get("ProductionVariants", [VARIANT])
    settings = {
        "InstanceType": options.instance_type,
        "InitialInstanceCount": options.instances,
        "InferenceAmiVersion": options.inference_ami,
    }
    changes = {key: value for key, value in settings.items() if value is not None}
    variants = [{**first, **changes, "ModelName": model}, *others]
    config = _named(options, aws, "EndpointConfig", {**base, "ProductionVariants": variants})
    for variant in config["ProductionVariants"]:
        _warn_of_driver(variant)
    return config


def request_to_recreate(aws: Aws, operation: str, described: Reply) -> Reply:
    """Return the request that would recreate a resource from its description, without its name and
    tags. According to botocore's model, the request and the description have the same fields,
    except that a description has additional ones, such as the time of creation."""
    name = f"{operation.removeprefix('Create')}Name"
    kept = aws.input_shape("sagemaker", operation).members.keys() - {name, "Tags"}
    parameters = {
        key: value
        for key, value in described.items()
        if key in kept and value not in ({}, [], None)
    }
    container = parameters.get("PrimaryContainer", {})
    # AWS describes a model archive in two fields, but accepts only one of them in a request
    if "ModelDataUrl" in container:
        container.pop("ModelDataSource", None)
    return parameters


def model_name(config: Reply) -> str:
    """Return the name of the model that the configuration serves. Raise DeployError if it has
    none."""
    try:
        return str(config["ProductionVariants"][0]["ModelName"])
    except KeyError:
        raise DeployError(
            "the endpoint has inference components, not a model: it was created elsewhere"
        ) from None


def _named(options: Endpoint, aws: Aws, kind: str, parameters: Reply) -> Reply:
    """Return the request merged with --config, with tags, and with a name derived from its content.

    Because of that name, a command that failed halfway can be repeated: it then reuses the
    resources that it has already created.
    """
    name = f"{kind}Name"
    # the check of the request needs a name
    content = with_config(aws, options.config, f"Create{kind}", {**parameters, name: "name"})
    text = json.dumps(content, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return tagged(options, {**content, name: f"{options.name}-{digest}"})


def untagged(parameters: Reply, name: str) -> Reply:
    """Return the request without its tags and its field `name`."""
    return {key: value for key, value in parameters.items() if key not in (name, "Tags")}


def _model_data(url: str) -> dict[str, Any]:
    """Return the fields of a ContainerDefinition for an archive, or for unpacked files if `url`
    ends with /."""
    if url.endswith(".tar.gz"):
        return {"ModelDataUrl": url}
    return {
        "ModelDataSource": {
            "S3DataSource": {"S3Uri": url, "S3DataType": "S3Prefix", "CompressionType": "None"}
        }
    }


def _default_image(aws: Aws) -> str:
    reply = aws.find("ecr", "DescribeRepositories", repositoryNames=[PROJECT])
    if not reply:
        reason = (
            f"ECR has no repository '{PROJECT}' in {aws.region}: run 'push' first, or give --image"
        )
        return _raise_or_warn(aws, reason, "IMAGE")
    return f"{reply['repositories'][0]['repositoryUri']}:{git_version()}"


def _role_arn(aws: Aws, role: str) -> str:
    if role.startswith("arn:"):
        return role
    reply = aws.find("iam", "GetRole", RoleName=role)
    if not reply:
        reason = (
            f"there is no role '{role}': docs/deploy.md says how to create it; --role chooses "
            "another"
        )
        return _raise_or_warn(aws, reason, f"arn:aws:iam::ACCOUNT:role/{role}")
    return str(reply["Role"]["Arn"])


def _raise_or_warn(aws: Aws, reason: str, stand_in: str) -> str:
    """Raise DeployError, because a resource does not exist. In a dry run, print `reason` as a
    warning instead, and return `stand_in` in place of the resource."""
    if not aws.dry_run:
        raise DeployError(reason)
    say(f"warning: {reason}")
    return stand_in


def _warn_of_driver(variant: Reply) -> None:
    """Warn if the host of a GPU instance has an NVIDIA driver that is too old for the gpu image."""
    types = [pool.get("InstanceType", "") for pool in (variant, *variant.get("InstancePools", ()))]
    gpu_types = [name for name in types if GPU_TYPE.match(name)]
    ami = variant.get("InferenceAmiVersion")
    driver = DRIVERS.get(ami, NEEDED_DRIVER)  # do not warn about an unknown host image
    newest = [*DRIVERS][-1]
    if gpu_types and driver < NEEDED_DRIVER:
        say(
            f"warning: {gpu_types[0]} with InferenceAmiVersion {ami} has NVIDIA driver "
            f"{driver}, and the gpu image needs {NEEDED_DRIVER}: --inference-ami {newest}"
        )
