"""variant: another version beside the one in service, with a share of the traffic (A/B) or a copy of it (shadow)."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deploy import specification, tagging
from deploy.calls import Reply
from deploy.context import Context
from deploy.create import ensure
from deploy.endpoint import IN_SERVICE, assumed_config, assumed_model, only_variant, refuse_components, require, settle
from deploy.errors import DeployError, UsageError
from deploy.stack import CONFIG, MODEL, VARIANT, owned, remove

HELP = "try another version beside the one in service: a share of the traffic, or a copy of it"
CANDIDATE = "Candidate"
SHADOWS = "ShadowProductionVariants"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    specification.configure(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--weight", type=int, metavar="P", help="A/B: percent of the calls that the candidate answers")
    what.add_argument("--shadow", type=int, metavar="P", help="percent of the calls that it gets too, unanswered")
    what.add_argument("--promote", action="store_true", help="the candidate takes the place of the version in service")
    what.add_argument("--remove", action="store_true", help="end the trial")


def run(arguments: argparse.Namespace, context: Context) -> None:
    """Makes the configuration with the candidate, or without it, and updates the endpoint."""
    check(arguments)
    current = require(context)
    if current["EndpointStatus"] != IN_SERVICE:
        raise DeployError(
            f"the endpoint '{context.name}' is {current['EndpointStatus']}: try again when it is InService"
        )
    context = replace(context, tags=tagging.own_tags(context, current["EndpointArn"]) + context.tags)
    old = _config(context, current["EndpointConfigName"], arguments)
    refuse_components(old)
    main, candidate = only_variant(old), candidate_of(old)
    _refuse(arguments, old, candidate)
    if arguments.promote:
        config = _alone(context, {**(candidate or {}), "VariantName": VARIANT}, old)
    elif arguments.remove:
        config = _alone(context, main, old)
    else:
        config = _beside(arguments, context, old, candidate or main)
    ensure(context, CONFIG, config)
    _update(arguments, context, config)


def check(options: argparse.Namespace) -> None:
    """Raises UsageError for options that make no sense."""
    specification.check(options)
    for name, most in (("weight", 99), ("shadow", 100)):
        if (value := getattr(options, name)) is not None and not 1 <= value <= most:
            raise UsageError(f"--{name} is a percentage, 1 to {most}")
    changes = _changes(options)
    if changes and (options.promote or options.remove):
        raise UsageError("--promote and --remove take the candidate as it is, without other options")


def candidate_of(config: Reply) -> dict[str, Any] | None:
    """The configuration's second variant, with a share of the traffic or with its copy."""
    beside = [*config["ProductionVariants"][1:], *config.get(SHADOWS, ())]
    return dict(beside[0]) if beside else None


def _config(context: Context, name: str, options: argparse.Namespace) -> Reply:
    """The endpoint's configuration; a dry run assumes a candidate where one is to be promoted or removed."""
    assumed = assumed_config(context)
    if options.promote or options.remove:
        assumed["ProductionVariants"].append({**only_variant(assumed), "VariantName": CANDIDATE})
    return context.calls.call("sagemaker", "DescribeEndpointConfig", {"EndpointConfigName": name}, assumed)


def _refuse(options: argparse.Namespace, old: Reply, candidate: Mapping[str, Any] | None) -> None:
    """Raises DeployError where AWS has no such thing, or there is nothing to try, to promote or to remove."""
    if "ServerlessConfig" in only_variant(old):
        raise DeployError("a serverless endpoint has one variant only")
    if options.shadow and "AsyncInferenceConfig" in old:
        raise DeployError("an asynchronous endpoint has no shadow variant: --weight gives it a share of the calls")
    if (options.promote or options.remove) and candidate is None:
        raise DeployError("there is no candidate: --weight or --shadow makes one")
    if not (options.promote or options.remove or candidate or _changes(options)):
        raise DeployError("say what is other in the candidate: --image, --model-data, --env or --instance-type")


def _changes(options: argparse.Namespace) -> bool:
    given = (options.image, options.model_data, options.instance_type, options.instances)
    return bool(options.env) or any(each is not None for each in given)


def _beside(options: argparse.Namespace, context: Context, old: Reply, base: Mapping[str, Any]) -> Reply:
    """The configuration with a candidate that is made of `base`; makes its model where that is another one."""
    there = {"ModelName": base["ModelName"]}
    described = context.calls.call("sagemaker", "DescribeModel", there, assumed_model(context))
    current = described["PrimaryContainer"]
    container = specification.container(options, current, options.image or current["Image"])
    model = there
    if container != specification.creatable(current):
        model = specification.model(context, container, described)
        ensure(context, MODEL, model)
    share = options.weight or options.shadow
    made = {**specification.variant(options, base, model["ModelName"]), "VariantName": CANDIDATE}
    made["InitialVariantWeight"] = share / 100
    main = {**only_variant(old), "InitialVariantWeight": 1.0 if options.shadow else (100 - share) / 100}
    settings = specification.settings(options, old)
    if options.shadow:
        return specification.config(context, [main], settings, [made])
    return specification.config(context, [main, made], settings)


def _alone(context: Context, variant: Mapping[str, Any], old: Reply) -> Reply:
    return specification.config(context, [{**variant, "InitialVariantWeight": 1.0}], old)


def _update(options: argparse.Namespace, context: Context, config: Reply) -> None:
    """The number of instances of a variant that stays is kept, its weight is the configuration's."""
    context.say(f"updating endpoint {context.name}")
    parameters = {
        "EndpointName": context.name,
        "EndpointConfigName": config["EndpointConfigName"],
        "RetainAllVariantProperties": not options.promote,
        **({} if options.promote else {"ExcludeRetainedVariantProperties": [{"VariantPropertyType": "DesiredWeight"}]}),
    }
    context.calls.call("sagemaker", "UpdateEndpoint", parameters)
    if options.no_wait:
        context.out(f"endpoint {context.name} is being updated; 'status' shows the progress")
        return
    settle(context, config["EndpointConfigName"])
    _clean_up(context, config)
    context.out(f"endpoint {context.name} is InService with {config['EndpointConfigName']}")


def _clean_up(context: Context, config: Reply) -> None:
    """Deletes the configurations and models that the endpoint does not use any more."""
    used = {each["ModelName"] for each in (*config["ProductionVariants"], *config.get(SHADOWS, ()))}
    for name in owned(context, CONFIG, but=config["EndpointConfigName"]):
        remove(context, CONFIG, name)
    for name in owned(context, MODEL):
        if name not in used:
            remove(context, MODEL, name)
