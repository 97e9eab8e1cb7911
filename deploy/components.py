"""component: a model on an endpoint of inference components, with processors, memory and copies of its own."""

import argparse
import re
from typing import Any

from deploy import specification, tagging
from deploy.calls import Reply
from deploy.context import Context
from deploy.create import default_image
from deploy.endpoint import CLOCK_SKEW, IN_SERVICE, assumed_config, assumed_repository, has_components, require
from deploy.environment import warnings
from deploy.errors import DeployError, UsageError, one_line
from deploy.logs import COMPONENT_LOGS, show_last
from deploy.stack import VARIANT
from deploy.waiting import GONE, wait

HELP = "put a model on an endpoint of inference components, change it, or --remove it"
DEFAULT_MODEL = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
MAX_NAME = 63  # characters of SageMaker's name
PENDING = ("Creating", "Updating", "Deleting")
CPUS, MEMORY = 1.0, 2048  # a component's, unless it is said
NEEDS = {"cpus": "NumberOfCpuCoresRequired", "gpus": "NumberOfAcceleratorDevicesRequired"}
NEEDS |= {"memory": "MinMemoryRequiredInMb"}


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("component", metavar="COMPONENT", help="its name on this endpoint, such as bert")
    parser.add_argument("--model", metavar="NAME", help="which of the image's or the archive's models; default: all")
    specification.configure_container(parser)
    parser.add_argument("--cpus", type=float, metavar="N", help=f"processors of each copy; default: {CPUS:g}")
    parser.add_argument("--memory", type=int, metavar="MB", help=f"memory of each copy; default: {MEMORY}")
    parser.add_argument("--gpus", type=float, metavar="N", help="GPUs of each copy; default: none")
    parser.add_argument("--copies", type=int, metavar="N", help="how many; default: 1")
    parser.add_argument("--remove", action="store_true", help="delete it")


def run(arguments: argparse.Namespace, context: Context) -> None:
    """Creates the component, or changes what the options name, or deletes it."""
    check(arguments)
    name = full_name(context, arguments.component)
    endpoint = require(context)
    if endpoint["EndpointStatus"] != IN_SERVICE:
        raise DeployError(f"the endpoint '{context.name}' is {endpoint['EndpointStatus']}: try again when it serves")
    _require_components(context, endpoint["EndpointConfigName"])
    found = describe(context, name, _assumed(context) if arguments.remove else None)
    if arguments.remove:
        if not found:
            raise DeployError(f"there is no component '{name}' to remove")
        remove(context, name)
        context.out(f"component {name} is deleted")
    elif found:
        _change(arguments, context, name, found)
    else:
        _create(arguments, context, name)


def check(options: argparse.Namespace) -> None:
    """Raises UsageError for options that SageMaker would refuse."""
    specification.check_container(options)
    if options.model_data is not None and not options.model_data.endswith(".tar.gz"):
        raise UsageError("--model-data of a component is one archive: s3://BUCKET/KEY.tar.gz")
    for name in ("cpus", "memory", "gpus", "copies"):
        if (value := getattr(options, name)) is not None and value <= 0:
            raise UsageError(f"--{name} must be above 0")
    changes = (options.image, options.model, options.model_data, options.copies, *_needs(options).values())
    if options.remove and (options.env or any(each is not None for each in changes)):
        raise UsageError("--remove takes no other options")


def full_name(context: Context, component: str) -> str:
    """SageMaker's, which is one of the whole account; UsageError where it would be refused."""
    name = f"{context.name}-{component}"
    if not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", name) or len(name) > MAX_NAME:
        raise UsageError(
            f"the component '{component}' must be letters and digits, with - only between them, and with the "
            f"endpoint's name at most {MAX_NAME} characters"
        )
    return name


def names(context: Context) -> list[str]:
    """The endpoint's components. A dry run assumes none."""
    query = {"EndpointNameEquals": context.name}
    found = context.calls.pages("sagemaker", "ListInferenceComponents", query, "InferenceComponents")
    return [each["InferenceComponentName"] for each in found]


def describe(context: Context, name: str, assumed: Reply | None) -> Reply | None:
    """DescribeInferenceComponent's reply; None when there is no such component."""
    return context.calls.find("sagemaker", "DescribeInferenceComponent", {"InferenceComponentName": name}, assumed)


def remove(context: Context, name: str) -> None:
    """Deletes it, and waits until it is gone: an endpoint with components cannot be deleted."""
    context.say(f"deleting inference component {name}")
    context.calls.find("sagemaker", "DeleteInferenceComponent", {"InferenceComponentName": name})
    reply = _wait(context, name, None, (*PENDING, IN_SERVICE))
    if reply["InferenceComponentStatus"] != GONE:
        raise DeployError(f"component {name} is {reply['InferenceComponentStatus']}: {_reason(reply)}")


def row(context: Context, name: str) -> str:
    """What `status` says of it."""
    found = describe(context, name, None) or {"InferenceComponentStatus": GONE}
    runtime, needs = (
        found.get("RuntimeConfig", {}),
        found.get("Specification", {}).get("ComputeResourceRequirements", {}),
    )
    copies = f"{runtime.get('CurrentCopyCount', 0)} of {runtime.get('DesiredCopyCount', 0)} copies"
    sizes = ", ".join(f"{needs[field]:g} {word}" for word, field in NEEDS.items() if field in needs)
    return f"{found['InferenceComponentStatus']}, {copies}, each {sizes.replace('memory', 'MB')}"


def _require_components(context: Context, config: str) -> None:
    """A dry run assumes an endpoint that has them."""
    assumed = assumed_config(context)
    del assumed["ProductionVariants"][0]["ModelName"]
    found = context.calls.call("sagemaker", "DescribeEndpointConfig", {"EndpointConfigName": config}, assumed)
    if not has_components(found):
        raise DeployError(
            f"the endpoint '{context.name}' serves one container: 'create --components' makes another kind"
        )


def _create(options: argparse.Namespace, context: Context, name: str) -> None:
    specification_of = _specification(options, {}, options.image or default_image(context, context.engine.version()))
    _warn(context, specification_of)
    context.say(f"creating inference component {name}")
    parameters = {
        "InferenceComponentName": name,
        "EndpointName": context.name,
        "VariantName": VARIANT,
        "Specification": specification_of,
        "RuntimeConfig": {"CopyCount": options.copies or 1},
        "Tags": tagging.all_tags(context),
    }
    context.calls.call("sagemaker", "CreateInferenceComponent", parameters)
    _finish(options, context, name)


def _change(options: argparse.Namespace, context: Context, name: str, found: Reply) -> None:
    """What is not named stays. SageMaker starts new copies before it ends old ones."""
    there = _creatable(found["Specification"])
    wanted = _specification(options, there, options.image or there["Container"]["Image"])
    copies = {"CopyCount": options.copies} if options.copies else {}
    named = {"InferenceComponentName": name}
    context.say(f"updating inference component {name}")
    if wanted != there:
        _warn(context, wanted)
        more = {"RuntimeConfig": copies} if copies else {}
        context.calls.call("sagemaker", "UpdateInferenceComponent", {**named, "Specification": wanted, **more})
    elif copies and copies["CopyCount"] != found.get("RuntimeConfig", {}).get("DesiredCopyCount"):
        desired = {**named, "DesiredRuntimeConfig": copies}
        context.calls.call("sagemaker", "UpdateInferenceComponentRuntimeConfig", desired)
    else:
        context.out(f"component {name} has these settings already, nothing to do")
        return
    _finish(options, context, name)


def _specification(options: argparse.Namespace, base: Reply, image: str) -> dict[str, Any]:
    """An InferenceComponentSpecification: that of `base`, with what the options change."""
    before = base.get("Container", {})
    if options.model:
        options.env = [f"{DEFAULT_MODEL}={options.model}", *options.env]
    made = specification.container(options, {"Environment": before.get("Environment", {})}, image)
    archive = options.model_data or before.get("ArtifactUrl")
    container = {"Image": image, **({"ArtifactUrl": archive} if archive else {})}
    container |= {"Environment": made["Environment"]} if made.get("Environment") else {}
    startup = {
        "ModelDataDownloadTimeoutInSeconds": options.download_timeout,
        "ContainerStartupHealthCheckTimeoutInSeconds": options.health_timeout,
    }
    started = {**base.get("StartupParameters", {}), **{key: value for key, value in startup.items() if value}}
    least = {"NumberOfCpuCoresRequired": CPUS, "MinMemoryRequiredInMb": MEMORY}
    needs = {**(base.get("ComputeResourceRequirements") or least), **_needs(options)}
    return {
        "Container": container,
        "ComputeResourceRequirements": needs,
        **({"StartupParameters": started} if started else {}),
    }


def _needs(options: argparse.Namespace) -> dict[str, Any]:
    return {field: value for name, field in NEEDS.items() if (value := getattr(options, name)) is not None}


def _creatable(described: Reply) -> dict[str, Any]:
    """DescribeInferenceComponent's specification -> CreateInferenceComponent's."""
    container = dict(described["Container"])
    if deployed := container.pop("DeployedImage", None):
        container["Image"] = deployed["SpecifiedImage"]
    kept = ("ComputeResourceRequirements", "StartupParameters")
    return {"Container": container, **{key: described[key] for key in kept if described.get(key)}}


def _warn(context: Context, wanted: Reply) -> None:
    for line in warnings(wanted["Container"].get("Environment", {})):
        context.say(f"warning: {line}")


def _finish(options: argparse.Namespace, context: Context, name: str) -> None:
    if options.no_wait:
        context.out(f"component {name} is being made; 'status' shows the progress")
        return
    since = context.clock() - CLOCK_SKEW
    reply = _wait(context, name, _assumed(context), PENDING)
    status = reply["InferenceComponentStatus"]
    if status != IN_SERVICE:
        show_last(context, COMPONENT_LOGS + name, since)
        raise DeployError(f"component {name} is {status}: {_reason(reply)}")
    context.out(f"component {name} is InService")


def _wait(context: Context, name: str, assumed: Reply | None, pending: tuple[str, ...]) -> Reply:
    return wait(
        context,
        f"inference component {name}",
        describe=lambda: describe(context, name, assumed),
        field="InferenceComponentStatus",
        pending=pending,
    )


def _reason(reply: Reply) -> str:
    return one_line(reply.get("FailureReason") or "AWS gives no reason")


def _assumed(context: Context) -> Reply:
    image = {"SpecifiedImage": assumed_repository(context) + ":current"}
    return {"InferenceComponentStatus": IN_SERVICE, "Specification": {"Container": {"DeployedImage": image}}}
