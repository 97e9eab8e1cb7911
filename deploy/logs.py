"""logs: prints the container's log from CloudWatch."""

import argparse
import re
from collections import deque
from collections.abc import Iterable
from typing import Any

from deploy.context import Context
from deploy.errors import DeployError, UsageError

HELP = "print the container's log"
ENDPOINT_LOGS = "/aws/sagemaker/Endpoints/"
COMPONENT_LOGS = "/aws/sagemaker/InferenceComponents/"
TRANSFORM_LOGS = "/aws/sagemaker/TransformJobs"
FOLLOW = 3.0  # seconds between two polls
LAST = 30  # lines to show after a failure
SEEN = 10_000  # events to remember, so that none is printed twice
LATE = 60.0  # seconds: CloudWatch may show an event that much after a later one
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--since", default="1h", metavar="AGE", help="how far back: 90s, 10m, 2h, 1d")
    parser.add_argument("--lines", type=int, default=1000, metavar="N", help="only the last N lines")
    parser.add_argument("--follow", action="store_true", help="print new lines until Ctrl-C")
    parser.add_argument("--transform", metavar="JOB", help="log of this transform job instead of the endpoint")


def run(arguments: argparse.Namespace, context: Context) -> None:
    """Prints the log."""
    group = TRANSFORM_LOGS if arguments.transform else ENDPOINT_LOGS + context.name
    start = context.clock() - age(arguments.since)
    if arguments.lines < 1:
        raise UsageError("--lines must be 1 or more")
    events = read(context, group, start, arguments.transform or "")
    if events is None:
        raise DeployError(f"there is no log group {group} in {context.region}: the container has not started yet")
    _print(context, events[-arguments.lines :])
    if arguments.follow:
        _follow(context, group, events, arguments.transform or "")


def age(text: str) -> float:
    """90s, 10m, 2h or 1d in seconds."""
    if not re.fullmatch(r"\d+[smhd]", text):
        raise UsageError(f"--since '{text}' must be a number and s, m, h or d, such as 10m")
    return int(text[:-1]) * UNITS[text[-1]]


def read(context: Context, group: str, since: float, streams: str = "") -> list[dict[str, Any]] | None:
    """The group's events since that time (seconds since 1970), oldest first; None when there is no such group."""
    parameters: dict[str, Any] = {"logGroupName": group, "startTime": int(max(since, 0) * 1000)}
    if streams:
        parameters["logStreamNamePrefix"] = f"{streams}/"
    events: list[dict[str, Any]] = []
    while True:
        page = context.calls.find("logs", "FilterLogEvents", parameters, {"events": []})
        if page is None:
            return None
        events += page.get("events", [])
        if not page.get("nextToken"):
            return sorted(events, key=lambda event: event["timestamp"])
        parameters = parameters | {"nextToken": page["nextToken"]}


def show_last(context: Context, group: str, since: float, streams: str = "") -> None:
    """Prints the last lines of a failed container's log to stderr; a missing log is no error."""
    events = read(context, group, since, streams) or []
    if not events:
        context.say(f"(the log group {group} is empty: the container wrote nothing, or never started)")
    for event in events[-LAST:]:
        context.say(f"  {_line(event)}")


def _print(context: Context, events: Iterable[dict[str, Any]]) -> None:
    for event in events:
        context.out(_line(event))


def _line(event: dict[str, Any]) -> str:
    """The instance (the last part of the stream's name) and the message."""
    return f"{event['logStreamName'].rpartition('/')[2]} {event['message'].rstrip()}"


def _follow(context: Context, group: str, events: list[dict[str, Any]], streams: str) -> None:
    seen = deque((event["eventId"] for event in events), SEEN)
    newest = events[-1]["timestamp"] / 1000 if events else context.clock()
    while True:
        context.sleep(FOLLOW)
        fresh = [each for each in read(context, group, newest - LATE, streams) or [] if each["eventId"] not in seen]
        _print(context, fresh)
        seen.extend(each["eventId"] for each in fresh)
        newest = max([newest, *(each["timestamp"] / 1000 for each in fresh)])
