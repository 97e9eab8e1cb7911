"""status: prints the endpoint's state, what runs on it and how it scales."""

import argparse

from deploy import components, scaling
from deploy.calls import Reply
from deploy.context import Context
from deploy.endpoint import assumed_model, has_components, only_variant, read_config, require
from deploy.environment import masked
from deploy.errors import one_line
from deploy.variants import candidate_of

HELP = "print the endpoint's state and what runs on it"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command has no options of its own."""


def run(arguments: argparse.Namespace, context: Context) -> None:
    """Prints a line for each fact."""
    endpoint = require(context)
    config = read_config(context, endpoint["EndpointConfigName"])
    variant = only_variant(config)
    if has_components(config):
        rows = _endpoint(endpoint) + _capacity(endpoint, variant)
        _print(
            context, rows + [(f"component {name}", components.row(context, name)) for name in components.names(context)]
        )
        return
    model = context.calls.call(
        "sagemaker", "DescribeModel", {"ModelName": variant["ModelName"]}, assumed_model(context)
    )
    rows = _endpoint(endpoint) + _capacity(endpoint, variant) + _model(variant["ModelName"], model)
    if candidate := candidate_of(config):
        share = f"{candidate['InitialVariantWeight']:.0%} of the calls"
        kind = f"a copy of {share}" if config.get("ShadowProductionVariants") else share
        rows.append(("candidate", f"{candidate['ModelName']}, {kind}"))
    rows += _scaling(scaling.targets(context, []))
    _print(context, rows)


def _print(context: Context, rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        context.out(f"{name:<{width}}  {value}")


def _endpoint(endpoint: Reply) -> list[tuple[str, str]]:
    rows = [("endpoint", endpoint["EndpointName"]), ("status", endpoint["EndpointStatus"])]
    if reason := endpoint.get("FailureReason"):
        rows.append(("reason", one_line(reason)))
    if "LastModifiedTime" in endpoint:
        rows.append(("modified", f"{endpoint['LastModifiedTime']:%Y-%m-%d %H:%M:%S %Z}"))
    return [*rows, ("configuration", endpoint["EndpointConfigName"])]


def _capacity(endpoint: Reply, variant: Reply) -> list[tuple[str, str]]:
    if serverless := variant.get("ServerlessConfig"):
        return [("serverless", f"{serverless['MemorySizeInMB']} MB, {serverless['MaxConcurrency']} concurrent")]
    now = (endpoint.get("ProductionVariants") or [{}])[0]
    current = now.get("CurrentInstanceCount", variant["InitialInstanceCount"])
    wanted = now.get("DesiredInstanceCount", current)
    return [("instances", f"{current} of {wanted}, {variant['InstanceType']}")]


def _model(name: str, model: Reply) -> list[tuple[str, str]]:
    container = model["PrimaryContainer"]
    rows = [("model", name), ("image", container["Image"])]
    source = container.get("ModelDataSource", {}).get("S3DataSource", {}).get("S3Uri")
    data = container.get("ModelDataUrl") or source or "in the image"
    rows.append(("models", f"{data}{', multi-model' if container.get('Mode') == 'MultiModel' else ''}"))
    return rows + [("variable", f"{key}={value}") for key, value in masked(container.get("Environment", {})).items()]


def _scaling(targets: list[Reply]) -> list[tuple[str, str]]:
    return [("scaling", f"{each['MinCapacity']} to {each['MaxCapacity']} instances") for each in targets]
