"""python -m simulate: SageMaker on your desk."""

import argparse
import os
import re
import signal
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from serving.host.machine import memory_limit
from simulate.api import Api, Server
from simulate.asynchronous import Queue
from simulate.endpoint import Endpoint
from simulate.files import BadArchive, unpack
from simulate.journal import Journal
from simulate.rules import RULES, with_limits
from simulate.runner import CannotStart, Launch, find_engine

SERVE = Path(__file__).resolve().parents[1] / "serve"
UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
TICK = 0.2
FAILED, RULE_BROKEN = 1, 3  # exit codes


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m simulate",
        description="Run the container as SageMaker would, and offer the sagemaker-runtime API to boto3.",
        epilog="rules: " + ", ".join(RULES),
    )
    add = made.add_argument
    add("--image", default="", help="an image, run with podman or docker; default: ./serve as a plain process")
    add("--engine", default="", choices=("podman", "docker"), help="default: the first one installed")
    add("--serve", type=Path, default=SERVE, metavar="PROGRAM", help="the program to run as a plain process")
    data = made.add_mutually_exclusive_group()
    data.add_argument("--model-data", type=existing, metavar="FOLDER|TAR", help="becomes /opt/ml/model")
    data.add_argument("--models", type=existing, metavar="FOLDER", help="multi-model: its .tar.gz files")
    add("--env", type=pair, action="append", default=[], metavar="NAME=VALUE", help="for the container; repeatable")
    add("--memory", type=size, default=memory_limit(), metavar="4g", help="memory of the instance")
    add("--endpoint-name", default="", help="the endpoint's name; default: calls may use any name")
    add("--host", default="127.0.0.1")
    add("--port", type=int, choices=range(65536), default=8081, metavar="PORT", help="0 chooses a free one")
    add("--s3", type=Path, metavar="FOLDER", help="stands for S3: s3://BUCKET/KEY is FOLDER/BUCKET/KEY")
    add("--async-output", type=prefix, default="s3://simulate/async", metavar="S3URI", help="S3OutputPath")
    add("--limit", type=limit, action="append", default=[], metavar="RULE=NUMBER", help="change a limit; repeatable")
    add("--strict", action="store_true", help="exit code 3 if a rule was broken")
    return made


def existing(text: str) -> Path:
    if not Path(text).exists():
        raise ValueError(text)
    return Path(text)


def prefix(text: str) -> str:
    if not re.fullmatch(r"s3://[^/]+/.+", text):
        raise ValueError(text)
    return text


def pair(text: str) -> tuple[str, str]:
    name, value = text.split("=", 1)
    return name, value


def size(text: str) -> int:
    found = re.fullmatch(r"([1-9]\d*)([kmg]?)b?", text.lower())
    if not found:
        raise ValueError(text)
    return int(found[1]) * UNITS[found[2]]


def limit(text: str) -> tuple[str, float]:
    name, number = pair(text)
    if name not in RULES or not RULES[name].limit or not 0 < float(number) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be RULE=NUMBER, of a rule with a limit and a number above 0")
    return name, float(number)


def main(arguments: list[str]) -> int:
    """Return the exit code: 0; 1 after a failure, 2 for wrong arguments, 3 with --strict if a rule was broken."""
    options = parser().parse_args(arguments)
    journal = Journal(with_limits(dict(options.limit)), _print)
    try:
        with tempfile.TemporaryDirectory(prefix="sim-", ignore_cleanup_errors=True) as folder:
            return run(options, journal, Path(folder))
    except (CannotStart, BadArchive) as err:
        _print(f"error: {err}")
        return FAILED


def run(options: argparse.Namespace, journal: Journal, folder: Path) -> int:
    """Run until a signal, or until the endpoint fails. Raise CannotStart, BadArchive."""
    model = options.model_data
    if model and not model.is_dir():
        unpack(model, folder / "data")  # as the platform does
        model = folder / "data"
    journal.say(f"runs {options.image or options.serve}")
    launch = Launch(
        folder=folder / "containers",
        environment=dict(options.env),
        memory=options.memory,
        program=options.serve,
        engine=find_engine(options.engine) if options.image else "",
        image=options.image,
        model=model,
    )
    endpoint = Endpoint(options.endpoint_name, launch, options.models, journal)
    queue = Queue(endpoint, options.s3 or folder / "s3", options.async_output)
    stop = catch_signals(endpoint)
    with ExitStack() as stack:
        stack.callback(queue.close)
        server = _listen(options, Api(endpoint, queue))
        stack.callback(server.close)
        endpoint.start()
        stack.callback(endpoint.stop)
        while not (endpoint.settled.is_set() or stop.wait(TICK)):
            pass
        if not (endpoint.failure or stop.is_set()):
            url = f"http://{options.host}:{server.port}"
            journal.say(f"in service: {url} (EndpointName={endpoint.name or 'any-name'}); Ctrl-C ends it")
        while not (stop.wait(TICK) or endpoint.failure):
            pass
        journal.say("stopping …")
    journal.say(journal.summary())
    if endpoint.failure:
        journal.say(f"error: {endpoint.failure}")
        return FAILED
    return RULE_BROKEN if options.strict and journal.complaints else 0


def catch_signals(endpoint: Endpoint) -> threading.Event:
    """Return an event that the first SIGINT or SIGTERM sets. The second signal kills the container."""
    stop = threading.Event()

    def caught(*_: object) -> None:
        if stop.is_set():
            endpoint.kill()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, caught)
    return stop


def _listen(options: argparse.Namespace, api: Api) -> Server:
    try:
        return Server(options.host, options.port, api.app())
    except OSError as err:
        raise CannotStart(
            f"cannot listen on {options.host}:{options.port}: {os.strerror(err.errno or 0)}; give another --port"
        ) from err


def _print(text: str) -> None:
    """Print to stdout. If its reader has gone, the simulator ends as with Ctrl-C."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
