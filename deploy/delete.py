"""delete: all that `create`, `update` and `autoscale` made for this stack, and nothing else."""

import argparse

from deploy import alarms, scaling
from deploy.context import Context
from deploy.endpoint import PENDING, describe
from deploy.errors import DeployError
from deploy.stack import CONFIG, ENDPOINT, MODEL, owned, remove
from deploy.waiting import wait

HELP = "delete all that was created, after asking"
BUSY = tuple(status for status in PENDING if status != "Deleting")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace, context: Context) -> None:
    """Lists what carries the stack's tags, asks, deletes. The image, S3's files and the logs are kept."""
    found = {kind: owned(context, kind) for kind in (ENDPOINT, CONFIG, MODEL)}
    alarm_names = alarms.owned(context)
    lines = [f"  {kind.label} {name}" for kind, names in found.items() for name in names]
    lines += [f"  alarm {name}" for name in alarm_names]
    if not lines:
        context.out(f"nothing in {context.region} was made by this program for '{context.name}': nothing to delete")
        return
    listing = "\n".join(lines)
    context.say(f"in {context.region} this is deleted:\n{listing}")
    if not arguments.yes and not context.confirm("delete it?"):
        raise DeployError("nothing was deleted")
    if found[ENDPOINT]:
        _delete_endpoint(context)
    for kind in (CONFIG, MODEL):
        for name in found[kind]:
            remove(context, kind, name)
    if alarm_names:
        context.calls.find("cloudwatch", "DeleteAlarms", {"AlarmNames": alarm_names})
    context.out(f"deleted {len(lines)} resources of '{context.name}'")


def _delete_endpoint(context: Context) -> None:
    """The endpoint and its scaling. AWS deletes none that is being created or updated, so that is waited for."""
    scaling.remove(context)
    what = f"endpoint {context.name}"
    wait(context, what, lambda: describe(context, {"EndpointStatus": "InService"}), "EndpointStatus", BUSY)
    remove(context, ENDPOINT, context.name)
    still = (*PENDING, "InService", "OutOfService", "Failed", "UpdateRollbackFailed")
    wait(context, what, lambda: describe(context, None), "EndpointStatus", still)
