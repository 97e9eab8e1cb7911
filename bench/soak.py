"""Measure whether memory or descriptors grow under a constant load (docs/reliability.md).

`python -m bench.soak --minutes 60` calls the bundled models and four archives at 70 % of this
machine's maximum rate, and loads or unloads one more archive each minute.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import requests

from tests.support.archives import Loader, Usage, make_archive, usage
from tests.support.harness import ROOT, Server, link_model

SHARE = 0.7  # the load, as a share of the maximum rate
ARCHIVES = 8
LOADED = 4  # number of archives that are called
# The bundled models that are called, with the media types of their examples and a part of the right
# answers.
BUNDLED = {
    "bert": ("text/plain", '"embedding":[0.04'),
    "efficientnet": ("image/jpeg", '"espresso"'),
    "yolov4_tiny": ("image/jpeg", '"cup"'),
}
KINDS = LOADED + len(BUNDLED)
CALLERS = 4
WARM = 0.1  # the slopes leave out this share of the time at the beginning
SAMPLE_SECONDS = 5.0
MEGABYTE = 2**20
REPOSITORY = ROOT / "model_repository"


def call_steadily(loader: Loader, seconds: float, rate: float = 0.0) -> Counter[str]:
    """Call the models for `seconds`, `rate` times a second, or as often as possible if `rate` is 0.
    Return how often each verdict occurred."""
    numbers = itertools.count()
    begun = time.monotonic()

    def call(_: int) -> Counter[str]:
        verdicts: Counter[str] = Counter()
        while (passed := time.monotonic() - begun) < seconds:
            number = next(numbers)
            if rate:
                time.sleep(max(0.0, number / rate - passed))
            verdicts[verdict(loader, number)] += 1
        return verdicts

    with ThreadPoolExecutor(CALLERS) as callers:
        return sum(callers.map(call, range(CALLERS)), Counter())


def verdict(loader: Loader, number: int) -> str:
    """Call an archive or a bundled model, as `number` decides. Return "right", or what is wrong."""
    kind = number % KINDS
    x = float(number % 1000)
    try:
        if kind < LOADED:
            archive = kind + 1
            reply = loader.invoke(archive, x)
            right = f'"data":[{archive * x}]'  # each archive multiplies by its number
        else:
            reply, right = ask_bundled(loader, list(BUNDLED)[kind - LOADED])
    except requests.RequestException as err:
        return type(err).__name__
    if reply.status_code != 200:
        return f"{reply.status_code} {reply.json()['code']}"
    return "right" if right in reply.text else "wrong"


def ask_bundled(loader: Loader, name: str) -> tuple[requests.Response, str]:
    """Send a bundled model its example. Return the reply, and a text that a right answer
    contains."""
    media_type, right = BUNDLED[name]
    example = next((REPOSITORY / name).glob("example.*"))
    headers = {"Content-Type": media_type}
    url = f"{loader.url}/models/{name}/invoke"
    return requests.post(url, data=example.read_bytes(), headers=headers, timeout=60), right


def soak(server: Server, loader: Loader, minutes: float) -> str:
    """Load the models, measure the maximum rate, and call the models at SHARE of it for `minutes`.
    Return the results as text."""
    for number in range(1, ARCHIVES):
        loader.load(number)
    for name in BUNDLED:
        folder = loader.root / name / "model"
        folder.mkdir(parents=True)
        link_model(REPOSITORY / name, folder)
        document = {"model_name": name, "url": str(folder)}
        requests.post(f"{loader.url}/models", json=document, timeout=60).raise_for_status()
    most = call_steadily(loader, 10).total() / 10
    with ThreadPoolExecutor() as background:
        load = background.submit(call_steadily, loader, 60 * minutes, SHARE * most)
        samples = measure(server, loader, load)
    kept = [sample for sample in samples if sample[0] >= WARM * minutes]
    verdicts = ", ".join(f"{count} × {name}" for name, count in load.result().most_common())
    return (
        f"{minutes:g} minutes at {SHARE:.0%} of {most:.0f} answers per second, the bundled "
        f"models and {LOADED} archives called and one more loaded or unloaded every minute: "
        f"{verdicts}. Without the first {WARM:.0%}:\n\n{table_of(kept)}"
    )


def measure(
    server: Server, loader: Loader, load: Future[Counter[str]]
) -> list[tuple[float, Usage]]:
    """Once a minute until the load ends, load or unload an archive that is not called. While it is
    unloaded, take a sample every SAMPLE_SECONDS: the minutes passed and the server's usage. Return
    the samples."""
    samples = []
    begun = time.monotonic()
    changes = 0
    is_loaded = False
    while not load.done():
        wait([load], SAMPLE_SECONDS)
        passed = (time.monotonic() - begun) / 60
        if passed > changes + 1:
            changes += 1
            is_loaded = not is_loaded
            change = loader.load if is_loaded else loader.unload
            change(ARCHIVES)
        elif not is_loaded and not load.done():
            samples.append((passed, usage(server.process.pid, server.run_dir)))
    return samples


def table_of(samples: list[tuple[float, Usage]]) -> str:
    lines = ["| | at the beginning | at the end | slope per hour |", "|---|---|---|---|"]
    hours = [minutes / 60 for minutes, _ in samples]
    for name, values, unit in (
        ("memory", [each.memory / MEGABYTE for _, each in samples], "MB"),
        ("threads", [float(each.threads) for _, each in samples], ""),
        ("descriptors", [float(each.descriptors) for _, each in samples], ""),
        ("memory in /dev/shm", [each.shared / MEGABYTE for _, each in samples], "MB"),
        ("unpacked archives", [each.unpacked / 1024 for _, each in samples], "kB"),
    ):
        slope, _ = statistics.linear_regression(hours, values)
        lines.append(
            f"| {name} | {values[0]:.1f} {unit} | {values[-1]:.1f} {unit} | {slope:+.1f} {unit} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        models = Path(name) / "models"
        for number in range(1, ARCHIVES + 1):
            make_archive(models, number)
        variables = {"SAGEMAKER_MULTI_MODEL": "true", "SERVE_LOG_LEVEL": "warning"}
        server = Server(Path(name), models, **variables).wait_ready()
        try:
            print(soak(server, Loader(server.url, models), minutes))
        finally:
            server.stop()
