"""Simulates a SageMaker endpoint on your machine: python -m simulate."""

import argparse
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from serving.host.machine import memory_limit
from serving.repository.unpacking import BadArchive, unpack
from simulate.api import Api, Server
from simulate.asynchronous import Queue
from simulate.container import CannotStart, Launch, find_engine
from simulate.endpoint import Endpoint
from simulate.rules import RULES, Journal, with_limits

SERVE = Path(__file__).resolve().parents[1] / "serve"
HOST = "127.0.0.1"
# exit codes
FAILED = 1
RULE_BROKEN = 3


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulate",
        description="Run the container as SageMaker would, and offer the sagemaker-runtime API to "
        "boto3.",
        epilog="rules: " + ", ".join(RULES),
    )
    add = parser.add_argument
    data = parser.add_mutually_exclusive_group()
    add(
        "--image",
        default="",
        help="an image, run with podman or docker; default: ./serve as a plain process",
    )
    add(
        "--serve",
        type=Path,
        default=SERVE,
        metavar="PROGRAM",
        help="the program to run as a plain process",
    )
    data.add_argument(
        "--model-data", type=existing, metavar="FOLDER|TAR", help="becomes /opt/ml/model"
    )
    data.add_argument(
        "--models", type=existing, metavar="FOLDER", help="multi-model: its .tar.gz files"
    )
    add(
        "--env",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for the container; repeatable",
    )
    add(
        "--memory",
        type=size,
        default=memory_limit(),
        metavar="4g",
        help="memory of the instance in GB",
    )
    add(
        "--port",
        type=int,
        choices=range(65536),
        default=8081,
        metavar="PORT",
        help="0 chooses a free one",
    )
    add(
        "--s3",
        type=Path,
        metavar="FOLDER",
        help="stands for S3: s3://BUCKET/KEY is FOLDER/BUCKET/KEY",
    )
    add(
        "--limit",
        type=limit,
        action="append",
        default=[],
        metavar="RULE=NUMBER",
        help="change a limit; repeatable",
    )
    add("--strict", action="store_true", help="exit code 3 if a rule was broken")
    return parser


# argparse's messages contain the names of the next four functions, which parse options


def existing(text: str) -> Path:
    if not Path(text).exists():
        raise ValueError(text)
    return Path(text)


def pair(text: str) -> tuple[str, str]:
    name, value = text.split("=", 1)
    return name, value


def size(text: str) -> int:
    gigabytes = float(text.lower().removesuffix("g"))
    if not 0 < gigabytes < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be a number of GB above 0, such as 4g")
    return int(gigabytes * 2**30)


def limit(text: str) -> tuple[str, float]:
    name, number = pair(text)
    has_limit = name in RULES and RULES[name].limit
    if not has_limit or not 0 < float(number) < float("inf"):
        raise argparse.ArgumentTypeError(
            f"{text} must be RULE=NUMBER, of a rule with a limit and a number above 0"
        )
    return name, float(number)


def main(arguments: list[str]) -> int:
    """Run the simulator with the command-line `arguments`. Return the exit code: 0, 1 after a
    failure, or 3 if --strict is given and a rule was broken."""
    options = build_parser().parse_args(arguments)  # exits with 2 if they are invalid
    journal = Journal(with_limits(dict(options.limit)), partial(print, flush=True))
    try:
        with tempfile.TemporaryDirectory(prefix="sim-", ignore_cleanup_errors=True) as folder:
            return run(options, journal, Path(folder))
    except (CannotStart, BadArchive) as err:
        journal.say(f"error: {err}")
        return FAILED


def run(options: argparse.Namespace, journal: Journal, folder: Path) -> int:
    """Run the endpoint until a signal arrives or the endpoint fails. Return the exit code. Write
    all files to `folder`, except the output of asynchronous calls if --s3 names another folder.
    Raise CannotStart if no container engine is installed for --image or the port is in use, and
    BadArchive if the model's archive is invalid."""
    launch = _launch(options, folder)
    journal.say(f"runs {options.image or options.serve}")
    endpoint = Endpoint(launch, options.models, journal)
    queue = Queue(endpoint, options.s3 or folder / "s3")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: endpoint.ask_to_stop())
    with ExitStack() as stack:
        stack.callback(queue.close)
        server = _listen(options.port, Api(endpoint, queue))
        stack.callback(server.close)
        endpoint.start()
        stack.callback(endpoint.stop)
        endpoint.settled.wait()  # until the endpoint is in service, or stops
        if not endpoint.stopping.is_set():
            journal.say(
                f"in service: http://{HOST}:{server.port} (any EndpointName); Ctrl-C ends it"
            )
        endpoint.stopping.wait()
        journal.say("stopping …")
    journal.say(journal.summary())
    if endpoint.failure:
        journal.say(f"error: {endpoint.failure}")
        return FAILED
    return RULE_BROKEN if options.strict and journal.complaints else 0


def _launch(options: argparse.Namespace, folder: Path) -> Launch:
    """Return the Launch that says how to start the container. If the model is an archive, unpack it
    first, as the platform does. Raise BadArchive if the archive is invalid, and CannotStart if
    there is an image to start and no container engine is installed."""
    model = options.model_data
    if model and not model.is_dir():
        unpack(model, folder / "data")
        model = folder / "data"
    return Launch(
        folder=folder / "containers",
        environment=dict(options.env),
        memory=options.memory,
        program=options.serve,
        engine=find_engine() if options.image else "",
        image=options.image,
        model=model,
    )


def _listen(port: int, api: Api) -> Server:
    try:
        return Server(HOST, port, api.app())
    except OSError as err:
        reason = os.strerror(err.errno or 0)
        raise CannotStart(f"cannot listen on {HOST}:{port}: {reason}; give another --port") from err


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
