"""`serve --status`: what runs here, for a person.

The supervisor's file in the run folder tells of the processes and the last errors, GET /models and GET /metrics of the
rest.
"""

import json
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving import VERSION
from serving.host.address import bracketed
from serving.host.http import get
from serving.host.process_memory import pss_of, tree
from serving.host.status import ProcessStatus, Status, read_whole_status
from serving.settings.table import AUTO, Settings
from serving.supervisor.linux import LinuxSystem
from serving.supervisor.log_lines import ESCAPED
from serving.supervisor.output import Output

TIMEOUT = 5.0  # seconds
MOST_PORTS = 8  # of other servers, in a message
MOST_BYTES = 64 * 2**20  # of an answer
RUN_FOLDERS = "serve-*"  # that `serve` makes itself
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Row = Sequence[object]


class NothingServes(Exception):
    """No `serve` with these settings runs on this machine."""


@dataclass(frozen=True)
class Sample:
    """A line of Prometheus' text."""

    name: str
    labels: Mapping[str, str]
    value: float

    def has(self, model: str, version: str | None) -> bool:
        return self.labels["model"] == model and version in (None, self.labels["version"])


def report(settings: Settings) -> str:
    """Raises NothingServes."""
    status, folder = find(settings)
    parts = [[_headline(status, folder)], *_processes(status), *_served(settings, status), *_errors(status)]
    return "\n\n".join("\n".join(lines) for lines in parts).translate(ESCAPED | {ord("\n"): "\n"})


def find(settings: Settings) -> tuple[Status, Path]:
    """The one that serves on the settings' port, and its run folder; raises NothingServes."""
    own = settings.run_dir != AUTO
    folders = [settings.run_dir] if own else sorted(Path(tempfile.gettempdir()).glob(RUN_FOLDERS))
    running = [(status, folder) for folder in folders if (status := _running(folder / "status.json"))]
    for status, folder in running:
        if status.address[1] == settings.port:
            return status, folder
    where = str(settings.run_dir) if own else f"{tempfile.gettempdir()}/{RUN_FOLDERS}"
    ports = ", ".join(str(status.address[1]) for status, _ in running[:MOST_PORTS])
    others = f" (there are servers with PORT={ports})" if running else ""
    raise NothingServes(
        f"no server with PORT={settings.port} runs here, by the files in {where}{others}: say the PORT and the "
        "SERVE_RUN_DIR that it has, as its user"
    )


def _running(file: Path) -> Status | None:
    """What the file says, where its process runs still and belongs to its owner."""
    try:
        status = read_whole_status(file)
        owner = Path(f"/proc/{status.pid}").stat().st_uid
        return status if owner == file.stat().st_uid else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _headline(status: Status, folder: Path) -> str:
    host, port = status.address
    health = LinuxSystem(status.address, Output(sys.stdout.fileno())).ping() or "/ping: 200"
    where = f"http://{bracketed(host)}:{port}, run folder {folder}"
    return f"triton-multi-model {VERSION} is {status.stage} at {where}; {health}"


def _processes(status: Status) -> Iterator[list[str]]:
    itself = ProcessStatus(status.pid, 1, "running", since=status.since)
    rows = [_process("serve", itself, pss_of([status.pid]))]
    rows += [_process(name, each, pss_of(tree(each.pid)) if each.pid else 0) for name, each in status.processes.items()]
    yield columns(("PROCESS", "STATE", "PID", "MEMORY", "SINCE", "RESTARTS", "LAST END"), rows)


def _process(name: str, process: ProcessStatus, memory: int) -> Row:
    pid, since = process.pid or "", _moment(process.since) if process.pid and process.since else ""
    size = f"{memory / 2**20:.0f} MB" if process.pid and memory else ""
    return name, process.state, pid, size, since, max(0, process.starts - 1), process.last_exit


def _served(settings: Settings, status: Status) -> Iterator[list[str]]:
    """What only the front knows; a line of its own where it does not answer."""
    try:
        models = json.loads(_asked(settings, status, "/models"))["models"]
        samples = list(read_samples(_asked(settings, status, "/metrics").decode()))
    except (OSError, ValueError, KeyError) as err:
        yield [f"the models are not known: {err}"]
        return
    rows = [row for model in models for row in rows_of(model, samples)]
    yield columns(("MODEL", "VERSION", "STATE", "ENGINE", "REQUESTS", "ERRORS", "QUEUE", "REASON"), rows)
    in_work = total(sample for sample in samples if sample.name == "serve_nginx_in_flight")
    in_flask = total(sample for sample in samples if sample.name == "serve_in_flight")
    yield [f"{in_work} requests in work, {in_flask} of them in the Flask app"]


def _asked(settings: Settings, status: Status, path: str) -> bytes:
    """The body; raises OSError."""
    header, _, value = settings.management_secret.partition("=")
    secret = {header: value} if header else {}
    code, body = get(status.address, path, TIMEOUT, secret, MOST_BYTES)
    if code != 200:
        raise OSError(f"GET {path} answers {code} {body.decode('utf-8', 'replace').strip()}")
    return body


def rows_of(model: Mapping[str, Any], samples: Sequence[Sample]) -> Iterator[Row]:
    """A row for each version, and one for requests that none answered, where there is more than one version; in
    multi-model mode an archive has one row."""
    if "modelName" in model:
        yield model["modelName"], "", "READY", "", *_figures(samples, model["modelName"]), ""
        return
    name, engine, versions = model["name"], model.get("engine", ""), model["versions"]
    is_only = len(versions) == 1
    for entry in versions:
        reason = entry["reason"] or (model.get("error", "") if entry["state"] != "READY" else "")
        figures = _figures(samples, name, None if is_only else entry["version"])
        yield name, entry["version"], entry["state"], engine, *figures, reason
    unanswered = _figures(samples, name, "")
    if unanswered[0] and not is_only:
        yield name, "none", "", engine, *unanswered, ""


def _figures(samples: Sequence[Sample], model: str, version: str | None = None) -> tuple[int, int, int]:
    """Requests, errors among them, and those that wait in Triton; of all versions where none is named."""
    requests = [s for s in samples if s.name == "serve_requests_total" and s.has(model, version)]
    waiting = [s for s in samples if s.name == "nv_inference_pending_request_count" and s.has(model, version)]
    errors = [sample for sample in requests if sample.labels["code"] >= "400"]
    return total(requests), total(errors), total(waiting)


def _errors(status: Status) -> Iterator[list[str]]:
    errors = [f"{_moment(error.time)}  {error.process}: {error.text}" for error in status.errors]
    yield ["LAST ERRORS", *(errors or ["none"])]


def read_samples(text: str) -> Iterator[Sample]:
    """Prometheus' text; what is no sample is left out."""
    for name, labels, value in SAMPLE.findall(text):
        yield Sample(name, {key: re.sub(r"\\(.)", r"\1", said) for key, said in LABEL.findall(labels)}, float(value))


def total(samples: Iterable[Sample]) -> int:
    return int(sum(sample.value for sample in samples))


def columns(head: Row, rows: Sequence[Row]) -> list[str]:
    """A table; a column without a value is left out."""
    lines = [list(map(str, line)) for line in (head, *rows)]
    filled = [column for column in zip(*lines, strict=True) if any(column[1:])]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in filled]
    return ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]


def _moment(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
