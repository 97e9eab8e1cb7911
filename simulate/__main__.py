"""python -m simulate: SageMaker on your desk."""

import os
import signal
import stat
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from simulate.api import Api, Server
from simulate.archives import BadArchive, unpack
from simulate.asynchronous import Queue
from simulate.chaos import Chaos
from simulate.endpoint import Endpoint
from simulate.image import Image, find_engine
from simulate.inplace import InPlace, can_isolate
from simulate.instance import Plan
from simulate.journal import Journal
from simulate.options import AUTO, Options, parse
from simulate.page import ON
from simulate.runner import CannotStart, Runner
from simulate.s3 import Folder

TICK = 0.2
FAILED, RULE_BROKEN = 1, 3  # exit codes


def main(arguments: list[str]) -> int:
    """The exit code: 0; 1 after a failure, 2 for wrong arguments, 3 with --strict when a rule was broken."""
    options = parse(arguments)
    journal = Journal(options.rules, _print)
    try:
        with tempfile.TemporaryDirectory(prefix="sim-", ignore_cleanup_errors=True) as folder:
            return run(options, journal, Path(folder))
    except (CannotStart, BadArchive) as err:
        _print(f"error: {err}")
        return FAILED


def run(options: Options, journal: Journal, folder: Path) -> int:
    """Runs until a signal, or until the endpoint fails. Raises CannotStart, BadArchive."""
    endpoint = make_endpoint(options, journal, folder)
    queue = Queue(endpoint, Folder(options.s3 or folder / "s3"), options.async_output, options.instances)
    stop = catch_signals(endpoint)
    with ExitStack() as stack:
        server = _listen(options, endpoint, queue)
        stack.callback(endpoint.stop)
        stack.callback(queue.close)
        stack.callback(server.close)
        endpoint.start()
        await_service(endpoint, stop, f"http://{options.host}:{server.port}", journal)
        while not (stop.wait(TICK) or endpoint.failure):
            pass
        journal.say("stopping …")
    journal.say(journal.summary())
    if endpoint.failure:
        journal.say(f"error: {endpoint.failure}")
        return FAILED
    return RULE_BROKEN if options.strict and journal.complaints else 0


def make_endpoint(options: Options, journal: Journal, folder: Path) -> Endpoint:
    """Raises CannotStart, BadArchive."""
    runner = make_runner(options)
    journal.say(f"runs {runner.describe()}")
    model = _model_folder(options.model_data, folder) if options.model_data else None
    if model and options.image and not others_can_read(model):
        journal.say(f"note: only its owner can read {model}, and the image may have another user: chmod o+rx {model}")
    plan = Plan(
        endpoint=options.endpoint_name,
        runner=runner,
        environment={**({} if options.models else ON), **options.environment},
        folder=folder,
        memory=options.memory,
        model=model,
        store=options.models,
    )
    return Endpoint(
        plan, instances=options.instances, routing=options.routing, journal=journal, chaos=Chaos(options.chaos)
    )


def make_runner(options: Options) -> Runner:
    if options.image:
        return Image(find_engine(options.engine), options.image, options.memory)
    return InPlace(options.serve, options.isolation == AUTO and can_isolate())


def await_service(endpoint: Endpoint, stop: threading.Event, url: str, journal: Journal) -> None:
    """Waits until every instance is in service; returns earlier when one fails, or at a signal."""
    while not (endpoint.settled() or stop.wait(TICK)):
        pass
    if not (endpoint.failure or stop.is_set()):
        name = endpoint.name or "any-name"
        journal.say(f"in service: {url} (EndpointName={name}); Ctrl-C ends it")


def catch_signals(endpoint: Endpoint) -> threading.Event:
    """An event that the first SIGINT or SIGTERM sets. The second signal kills all containers."""
    stop = threading.Event()

    def caught(*_: object) -> None:
        if stop.is_set():
            endpoint.kill()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, caught)
    return stop


def _listen(options: Options, endpoint: Endpoint, queue: Queue) -> Server:
    try:
        return Server(options.host, options.port, Api(endpoint, queue).app())
    except OSError as err:
        queue.close()
        raise CannotStart(
            f"cannot listen on {options.host}:{options.port}: {os.strerror(err.errno or 0)}; give another --port"
        ) from err


def _model_folder(data: Path, folder: Path) -> Path:
    """The folder that becomes /opt/ml/model; unpacks an archive as the platform does."""
    if data.is_dir():
        return data
    unpack(data, folder / "data")
    return folder / "data"


def others_can_read(folder: Path) -> bool:
    needed = stat.S_IROTH | stat.S_IXOTH
    return folder.stat().st_mode & needed == needed


def _print(text: str) -> None:
    """Prints to stdout. When its reader has gone, the simulator ends as with Ctrl-C."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
