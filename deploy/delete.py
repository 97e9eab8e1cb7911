"""delete: deletes what `create`, `update` and `autoscale` made for this stack, and nothing else."""

import argparse

from deploy import alarms, components, scaling
from deploy.context import Context
from deploy.endpoint import PENDING, describe
from deploy.errors import DeployError
from deploy.stack import CONFIG, ENDPOINT, MODEL, owned, remove
from deploy.waiting import wait

HELP = "delete everything that was created, after asking"
BUSY = tuple(status for status in PENDING if status != "Deleting")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace, context: Context) -> None:
    """Lists the resources with the stack's tags, asks, deletes them. Keeps the image, the files in S3 and the logs."""
    found = {kind: owned(context, kind) for kind in (ENDPOINT, CONFIG, MODEL)}
    alarm_names = alarms.owned(context)
    parts = components.names(context) if found[ENDPOINT] else []
    lines = [f"  {kind.label} {name}" for kind, names in found.items() for name in names]
    lines += [f"  inference component {name}" for name in parts]
    lines += [f"  alarm {name}" for name in alarm_names]
    if not lines:
        context.out(f"this program made nothing for '{context.name}' in {context.region}: nothing to delete")
        return
    listing = "\n".join(lines)
    context.say(f"to delete in {context.region}:\n{listing}")
    if not arguments.yes and not context.confirm("delete it?"):
        raise DeployError("nothing was deleted")
    if found[ENDPOINT]:
        _delete_endpoint(context, parts)
    for kind in (CONFIG, MODEL):
        for name in found[kind]:
            remove(context, kind, name)
    if alarm_names:
        context.calls.find("cloudwatch", "DeleteAlarms", {"AlarmNames": alarm_names})
    context.out(f"deleted {len(lines)} resources of '{context.name}'")


def _delete_endpoint(context: Context, parts: list[str]) -> None:
    """Deletes the endpoint, its components and its scaling, not while it is changed, which AWS refuses."""
    scaling.remove(context)
    for name in parts:
        components.remove(context, name)
    what = f"endpoint {context.name}"
    in_service = {"EndpointStatus": "InService"}
    wait(context, what, describe=lambda: describe(context, in_service), field="EndpointStatus", pending=BUSY)
    remove(context, ENDPOINT, context.name)
    existing = (*PENDING, "InService", "OutOfService", "Failed", "UpdateRollbackFailed")
    wait(context, what, describe=lambda: describe(context, None), field="EndpointStatus", pending=existing)
