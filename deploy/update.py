"""update: changes image, models or settings by a blue/green deployment; alarms roll it back."""

import argparse
from dataclasses import replace
from typing import Any

from deploy import alarms, scaling, specification, tagging, variants
from deploy.calls import Reply
from deploy.context import Context
from deploy.create import ensure
from deploy.endpoint import assumed_model, only_variant, read_config, refuse_components, require, settle
from deploy.environment import warnings
from deploy.errors import DeployError, UsageError
from deploy.stack import CONFIG, MODEL, owned, remove

HELP = "change image, models or settings by a blue/green deployment; alarms roll it back"
ROUTING = {"all-at-once": "ALL_AT_ONCE", "canary": "CANARY", "linear": "LINEAR"}
COMPARED = ("ProductionVariants", *specification.KEPT_OF_CONFIG)
MICROSECONDS = 1000  # in a millisecond


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    specification.configure(parser)
    shift = parser.add_argument_group("how traffic moves to the new instances")
    shift.add_argument("--traffic", choices=ROUTING, default="all-at-once", help="default: %(default)s")
    shift.add_argument("--percent", type=int, default=10, metavar="P", help="first part, or each step (default: 10)")
    shift.add_argument(
        "--interval", type=int, default=300, metavar="S", help="seconds to watch each part (default: 300)"
    )
    watch = parser.add_argument_group("what rolls it back")
    watch.add_argument("--alarm", action="append", default=[], metavar="NAME", help="your own CloudWatch alarm")
    watch.add_argument("--no-alarms", action="store_true", help="roll back only when the new instances do not start")
    watch.add_argument("--max-5xx", type=float, default=1.0, metavar="P", help="percent of failed calls (default: 1)")
    watch.add_argument("--max-latency", type=float, default=10_000.0, metavar="MS", help="p99 (default: 10000 ms)")


def run(arguments: argparse.Namespace, context: Context) -> None:
    """Creates a new model and configuration if something changes, updates the endpoint, removes the old ones."""
    check(arguments)
    current = require(context)
    context = _tagged(context, current["EndpointArn"])
    _refuse_unsettled(context, current["EndpointStatus"])
    old = read_config(context, current["EndpointConfigName"])
    refuse_components(old)
    _refuse_scaled(arguments, context, only_variant(old))
    _refuse_candidate(context, old)
    model, config = _wanted(arguments, context, old)
    if all((config.get(key) or {}) == (old.get(key) or {}) for key in COMPARED):
        context.out(f"endpoint {context.name} has these settings already, nothing to do")
        return
    if "PrimaryContainer" in model:
        ensure(context, MODEL, model)
    ensure(context, CONFIG, config)
    context.say(f"updating endpoint {context.name}")
    context.calls.call("sagemaker", "UpdateEndpoint", _update(arguments, context, config))
    _finish(arguments, context, model["ModelName"], config["EndpointConfigName"])


def check(options: argparse.Namespace) -> None:
    """Raises UsageError for options that SageMaker would refuse."""
    specification.check(options)
    bounds = {"canary": (1, 50), "linear": (10, 50)}
    low, high = bounds.get(options.traffic, (0, 100))
    if not low <= options.percent <= high:
        raise UsageError(f"--percent must be {low} to {high} with --traffic {options.traffic}")
    if not 0 <= options.interval <= 3600:
        raise UsageError("--interval must be 0 to 3600 seconds")
    if options.alarm and options.no_alarms:
        raise UsageError("--alarm and --no-alarms exclude each other")
    if not 0 <= options.max_5xx <= 100 or options.max_latency <= 0:
        raise UsageError("--max-5xx is a percentage, --max-latency a number of milliseconds above 0")


def _tagged(context: Context, endpoint: str) -> Context:
    """With the endpoint's own tags for what is made anew; the tags of --tag are added to it."""
    there = tagging.own_tags(context, endpoint)
    if context.tags:
        given = [{"Key": key, "Value": value} for key, value in context.tags]
        context.calls.call("sagemaker", "AddTags", {"ResourceArn": endpoint, "Tags": given})
    return replace(context, tags=tuple((dict(there) | dict(context.tags)).items()))


def _refuse_candidate(context: Context, old: Reply) -> None:
    if variants.candidate_of(old):
        raise DeployError(
            f"the endpoint '{context.name}' has a candidate beside it: 'variant --promote' or 'variant --remove' first"
        )


def _refuse_unsettled(context: Context, status: str) -> None:
    if status not in ("InService", "OutOfService", "UpdateRollbackFailed"):
        advice = "'create' replaces it" if status == "Failed" else "try again when it is InService"
        raise DeployError(f"the endpoint '{context.name}' is {status}: {advice}")


def _refuse_scaled(options: argparse.Namespace, context: Context, variant: Reply) -> None:
    """Raises DeployError when the instance type would change under autoscaling, which AWS forbids."""
    if options.instance_type in (None, variant.get("InstanceType")) or not scaling.targets(context, []):
        return
    raise DeployError(
        "the endpoint autoscales, and AWS cannot change its instance type meanwhile: "
        "run 'autoscale --remove', 'update', 'autoscale'"
    )


def _wanted(options: argparse.Namespace, context: Context, old: Reply) -> tuple[Reply, Reply]:
    """CreateModel's and CreateEndpointConfig's parameters: the current ones with what the options change.

    The first has only the ModelName when the model does not change.
    """
    variant = only_variant(old)
    there = {"ModelName": variant["ModelName"]}
    described = context.calls.call("sagemaker", "DescribeModel", there, assumed_model(context))
    current = described["PrimaryContainer"]
    container = specification.container(options, current, options.image or current["Image"])
    for line in warnings(container.get("Environment", {})):
        context.say(f"warning: {line}")
    same = container == specification.creatable(current)
    model = there if same else specification.model(context, container, described)
    new_variant = specification.variant(options, variant, model["ModelName"])
    return model, specification.config(context, [new_variant], specification.settings(options, old))


def _update(options: argparse.Namespace, context: Context, config: Reply) -> dict[str, Any]:
    """UpdateEndpoint's parameters. Without --instances, the number of instances stays."""
    parameters = {"EndpointName": context.name, "EndpointConfigName": config["EndpointConfigName"]}
    if "ServerlessConfig" in only_variant(config):
        return parameters  # serverless endpoints have no deployment guardrails
    names = options.alarm or ([] if options.no_alarms else alarms.make(context, _thresholds(options)))
    guard = {"AutoRollbackConfiguration": {"Alarms": [{"AlarmName": name} for name in names]}} if names else {}
    return {
        **parameters,
        "RetainAllVariantProperties": options.instances is None,
        **_not_retained(options),
        "DeploymentConfig": {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": _routing(options)}, **guard},
    }


def _not_retained(options: argparse.Namespace) -> dict[str, Any]:
    """What AWS would else take from the old configuration."""
    changed = options.data_capture is not None and options.instances is None
    return {"ExcludeRetainedVariantProperties": [{"VariantPropertyType": "DataCaptureConfig"}]} if changed else {}


def _thresholds(options: argparse.Namespace) -> dict[str, float]:
    return {"5xx": options.max_5xx / 100, "latency": options.max_latency * MICROSECONDS}


def _routing(options: argparse.Namespace) -> dict[str, Any]:
    kind = ROUTING[options.traffic]
    size = {"Type": "CAPACITY_PERCENT", "Value": options.percent}
    part = {"CANARY": {"CanarySize": size}, "LINEAR": {"LinearStepSize": size}}.get(kind, {})
    return {"Type": kind, "WaitIntervalInSeconds": options.interval, **part}


def _finish(options: argparse.Namespace, context: Context, model: str, config: str) -> None:
    if options.no_wait:
        context.out(f"endpoint {context.name} is being updated; 'status' shows the progress")
        return
    settle(context, config)
    for kind, kept in ((CONFIG, config), (MODEL, model)):
        for name in owned(context, kind, but=kept):
            remove(context, kind, name)
    context.out(f"endpoint {context.name} is InService with {config}")
