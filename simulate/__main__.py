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
from simulate.runner import CannotStart, Runner
from simulate.s3 import Folder

TICK = 0.2
FAILED, BROKEN = 1, 3


def main(arguments: list[str]) -> int:
    """0; 1 after a failure, 2 for a mistake in the arguments, 3 with --strict when a rule was broken."""
    options = parse(arguments)
    journal = Journal(options.rules, _print)
    try:
        with tempfile.TemporaryDirectory(prefix="sim-", ignore_cleanup_errors=True) as folder:
            return run(options, journal, Path(folder))
    except (CannotStart, BadArchive) as err:
        _print(f"error: {err}")
        return FAILED


def run(options: Options, journal: Journal, folder: Path) -> int:
    """Until a signal, or until the endpoint has failed. Raises CannotStart, BadArchive."""
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
    return BROKEN if options.strict and journal.complaints else 0


def make_endpoint(options: Options, journal: Journal, folder: Path) -> Endpoint:
    """Raises CannotStart, BadArchive."""
    runner = make_runner(options)
    journal.say(f"runs {runner.describe()}")
    model = _model_folder(options.model_data, folder) if options.model_data else None
    if model and options.image and not others_can_read(model):
        journal.say(f"note: {model} can be read by its owner only; the image's user may be another: chmod o+rx {model}")
    plan = Plan(options.endpoint_name, runner, options.environment, folder, options.memory, model, options.models)
    return Endpoint(plan, options.instances, options.routing, journal, Chaos(options.chaos))


def make_runner(options: Options) -> Runner:
    if options.image:
        return Image(find_engine(options.engine), options.image, options.memory)
    return InPlace(options.serve, options.isolation == AUTO and can_isolate())


def await_service(endpoint: Endpoint, stop: threading.Event, url: str, journal: Journal) -> None:
    """Until every instance is in service; returns earlier when one never will be, or at a signal."""
    while not (endpoint.settled() or stop.wait(TICK)):
        pass
    if not (endpoint.failure or stop.is_set()):
        name = endpoint.name or "any-name"
        journal.say(f"in service: {url} (EndpointName={name}); Ctrl-C ends it")


def catch_signals(endpoint: Endpoint) -> threading.Event:
    """Set by the first SIGINT or SIGTERM; the second kills what has not ended yet."""
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
    """/opt/ml/model, as the platform unpacks it."""
    if data.is_dir():
        return data
    unpack(data, folder / "data")
    return folder / "data"


def others_can_read(folder: Path) -> bool:
    needed = stat.S_IROTH | stat.S_IXOTH
    return folder.stat().st_mode & needed == needed


def _print(text: str) -> None:
    """Nobody reads it any more: that ends us as Ctrl-C does."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
