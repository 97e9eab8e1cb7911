"""costs: compares one endpoint for all models with one endpoint per model, by the prices in prices.toml."""

import argparse
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.context import Context
from deploy.errors import DeployError
from deploy.measured import FOLDER, Work, measured

HELP = "print the cost page (docs/costs.md), computed from a price table"
PRICES = Path(__file__).with_name("prices.toml")


@dataclass(frozen=True)
class Model:
    """A model's load: requests per second, and core-seconds per request."""

    name: str
    requests_per_second: float
    core_seconds: float


@dataclass(frozen=True)
class Instance:
    """An instance type; an endpoint has at least `minimum` instances, even without load. `processor` is its kind, by
    the names of the benchmark's results."""

    type: str
    price_per_hour: float
    cores: float
    minimum: int
    processor: str = ""


@dataclass(frozen=True)
class Prices:
    """The table of prices, models and loads."""

    currency: str
    hours_per_month: float
    target_load: float
    loads: tuple[float, ...]
    models: tuple[Model, ...]
    instances: tuple[Instance, ...]

    @classmethod
    def read(cls, path: Path) -> "Prices":
        """Raises DeployError when the file cannot be read or is incomplete."""
        try:
            return cls._from(tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as err:
            raise DeployError(f"{path} cannot be read: {err.strerror}") from None
        except (tomllib.TOMLDecodeError, TypeError, KeyError, ValueError) as err:
            raise DeployError(f"{path} is not a price table: {err}") from None

    @classmethod
    def _from(cls, table: dict[str, Any]) -> "Prices":
        models = tuple(Model(**row) for row in table.pop("models"))
        instances = tuple(Instance(**row) for row in table.pop("instances"))
        prices = cls(**{**table, "loads": tuple(table["loads"])}, models=models, instances=instances)
        positive = [prices.hours_per_month, prices.target_load, *(each.cores for each in instances)]
        if not models or not instances or min(positive) <= 0 or min(each.minimum for each in instances) < 1:
            raise ValueError("it needs models and instances, and hours, load, cores and minimum above 0")
        return prices

    def needed(self, instance: Instance, models: tuple[Model, ...], load: float) -> int:
        """The number of instances for these models at `load` times their requests."""
        work = load * sum(model.requests_per_second * model.core_seconds for model in models)
        # Rounded so that binary fractions do not turn 6 cores of work on 6 cores into 2 instances.
        return max(instance.minimum, math.ceil(round(work / (instance.cores * self.target_load), 9)))

    def monthly(self, instance: Instance, count: int) -> float:
        """The cost of `count` instances per month."""
        return count * instance.price_per_hour * self.hours_per_month

    def million(self, instance: Instance, core_seconds: float) -> float:
        """The cost of a million requests on an instance that is used up to the target load."""
        return 1e6 * core_seconds / (instance.cores * self.target_load) / 3600 * instance.price_per_hour


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--prices", type=Path, default=PRICES, metavar="FILE", help="default: deploy/prices.toml")


def run(arguments: argparse.Namespace, context: Context) -> None:
    """Prints the page."""
    context.out(page(Prices.read(arguments.prices)).rstrip("\n"))


def page(prices: Prices, results: Path = FOLDER) -> str:
    """The page, in Markdown; `results` are the benchmark's."""
    parts = [*_introduction(prices), *_models(prices), *_tables(prices), *_millions(prices, results), *_closing()]
    return "\n".join(parts) + "\n"


def _introduction(prices: Prices) -> list[str]:
    count = len(prices.models)
    return [
        "# What it costs",
        "",
        f"One endpoint with {count} models against {count} endpoints with one model each. This page is computed from",
        "[deploy/prices.toml](../deploy/prices.toml): put your prices and loads there, then",
        "",
        "```sh",
        ".venv/bin/python -m deploy costs > docs/costs.md",
        "```",
        "",
        "**The prices are examples; replace them.** AWS lists the current ones of each region at",
        "<https://aws.amazon.com/sagemaker/ai/pricing/> (Real-Time Inference). Storage, data transfer and logs are",
        "left out; they are nearly the same in both cases.",
        "",
        "An endpoint is paid by the hour for each of its instances, even when nobody calls it. So a model's own",
        "endpoint costs at least its minimum of instances (two, to survive the loss of an availability zone), and",
        "no other model can use what this one leaves free. Models that share an endpoint share the minimum and the",
        "reserve. Once each model fills its own instances, sharing saves only the cost of rounding up to whole",
        "instances.",
        "",
    ]


def _models(prices: Prices) -> list[str]:
    rows = [f"| {each.name} | {each.requests_per_second:g} | {each.core_seconds:g} |" for each in prices.models]
    head = ["| Model | Requests per second at load 1 | Core-seconds per request |", "|---|---|---|"]
    planned = f"Planned for {prices.target_load:.0%} of the processors' time, {prices.hours_per_month:g} hours a month."
    return [*head, *rows, "", planned, ""]


def _tables(prices: Prices) -> list[str]:
    lines = []
    count = len(prices.models)
    for instance in prices.instances:
        lines += [
            f"## {instance.type}",
            "",
            f"{instance.price_per_hour:g} {prices.currency} an hour, {instance.cores:g} cores, "
            f"at least {instance.minimum} instances.",
            "",
            f"| Load | One endpoint: instances | {prices.currency} a month "
            f"| {count} endpoints: instances | {prices.currency} a month | Saved |",
            "|---|---|---|---|---|---|",
            *(_row(prices, instance, load) for load in prices.loads),
            "",
        ]
    return lines


def _row(prices: Prices, instance: Instance, load: float) -> str:
    one = prices.needed(instance, prices.models, load)
    each = [prices.needed(instance, (model,), load) for model in prices.models]
    together, apart = prices.monthly(instance, one), prices.monthly(instance, sum(each))
    counts = " + ".join(map(str, each))
    return f"| {load:g} | {one} | {together:,.0f} | {counts} | {apart:,.0f} | {1 - together / apart:.0%} |"


def _millions(prices: Prices, results: Path) -> list[str]:
    """What a million requests cost on each instance type; nothing where no instance names its processor."""
    processors = list(dict.fromkeys(each.processor for each in prices.instances if each.processor))
    if not processors:
        return []
    return [
        "## A million images, a million texts",
        "",
        "By the processor time that a request took in [the benchmark](benchmarks/README.md), of nginx, gunicorn and",
        f"Triton together, on instances that are busy at {prices.target_load:.0%}.",
        "",
        *(line for processor in processors for line in _by_processor(prices, processor, results)),
        "Hours in which nobody calls are not in it; they are in the tables above. The benchmark takes the",
        "processors that its machine shows for cores. Where they are hyperthreads, as an instance's vCPUs are, a",
        "million costs half.",
        "",
    ]


def _by_processor(prices: Prices, processor: str, results: Path) -> list[str]:
    own = [each for each in prices.instances if each.processor == processor]
    names, works = ", ".join(each.type for each in own), measured(processor, results)
    unknown = [f"{names}: `benchmarks/results/{processor}.md` is not there yet."]
    return [f"### {processor}", "", *(_million_table(prices, own, works) if works else unknown), ""]


def _million_table(prices: Prices, own: list[Instance], works: list[Work]) -> list[str]:
    first, example = own[0], works[0]
    worth = prices.million(first, example.core_seconds)
    return [
        f"1,000,000 × {example.core_seconds:.4f} core-seconds / ({first.cores:g} cores × {prices.target_load:.0%}) / "
        f"3,600 s × {first.price_per_hour:g} {prices.currency} "
        f"= {worth:.2f} {prices.currency} ({first.type}, the first line)",
        "",
        f"| A million | Core-seconds each | {' | '.join(f'{each.type}, {prices.currency}' for each in own)} |",
        "|---|---|" + "---|" * len(own),
        *(_million_row(prices, own, work) for work in works),
    ]


def _million_row(prices: Prices, own: list[Instance], work: Work) -> str:
    cells = (f"{prices.million(each, work.core_seconds):,.2f}" for each in own)
    return f"| {work.name} | {work.core_seconds:.4f} | {' | '.join(cells)} |"


def _closing() -> list[str]:
    return [
        "## What the figures leave out",
        "",
        "- Memory: all models must fit into one instance's. `SAGEMAKER_MULTI_MODEL` loads them as they are called",
        "  ([multi-model.md](multi-model.md)), at the price of a slow first call.",
        "- Neighbours: a burst on one model slows the others until the endpoint has scaled.",
        "- Autoscaling: with it both columns follow the load of the hour, and the minimum weighs more.",
        "- Serverless inference is paid by the time of the calls; at a few calls an hour it is less than any instance.",
    ]
