"""The command line of `python -m simulate`."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from serving.host.machine import memory_limit
from simulate.chaos import KINDS, Rates, parse_rates
from simulate.endpoint import RANDOM, ROUTING
from simulate.rules import RULES, Rules, with_limits

SERVE = Path(__file__).resolve().parents[1] / "serve"
UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
AUTO, NONE = "auto", "none"


@dataclass(frozen=True)
class Options:
    """The parsed options; `image` "" means ./serve in place, `memory` is in bytes."""

    image: str
    engine: str
    serve: Path
    isolation: str
    model_data: Path | None
    models: Path | None
    instances: int
    host: str
    port: int
    endpoint_name: str
    environment: dict[str, str]
    memory: int
    rules: Rules
    routing: str
    s3: Path | None
    async_output: str
    chaos: Rates
    strict: bool


def parse(arguments: list[str]) -> Options:
    """The options; for wrong arguments, prints a line and ends the process with code 2."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        return _options(given)
    except ValueError as err:
        parser.error(str(err))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulate",
        description="Runs the container as SageMaker would, and offers the sagemaker-runtime API to boto3 and the "
        "sagemaker SDK. Ctrl-C ends it.",
        epilog="rules: " + ", ".join(RULES),
    )
    _add_container(parser)
    _add_endpoint(parser)
    _add_rules(parser)
    return parser


def _add_container(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to run")
    what.add_argument("--image", default="", help="an image, run with podman or docker; default: ./serve in place")
    what.add_argument("--engine", default="", choices=("podman", "docker"), help="default: the first one installed")
    what.add_argument("--serve", type=Path, default=SERVE, metavar="PROGRAM", help="the program to run in place")
    what.add_argument(
        "--isolation",
        choices=(AUTO, NONE),
        default=AUTO,
        help="auto: run the program in its own namespaces if that is possible (root); none: as a plain process",
    )
    data = what.add_mutually_exclusive_group()
    data.add_argument("--model-data", type=Path, metavar="FOLDER|TAR", help="becomes /opt/ml/model")
    data.add_argument(
        "--models",
        type=Path,
        metavar="FOLDER",
        help="make a multi-model endpoint: the folder of .tar.gz files that stands for its S3 prefix",
    )
    what.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the container; repeatable")
    what.add_argument("--memory", default="", metavar="4g", help="memory of an instance; the limit of its container")


def _add_endpoint(parser: argparse.ArgumentParser) -> None:
    end = parser.add_argument_group("the endpoint")
    end.add_argument("--endpoint-name", default="", help="the endpoint's name; default: calls may use any name")
    end.add_argument("--instances", type=int, default=1)
    end.add_argument("--routing", choices=ROUTING, default=RANDOM)
    end.add_argument("--host", default="127.0.0.1")
    end.add_argument("--port", type=int, default=8081)
    end.add_argument("--s3", type=Path, metavar="FOLDER", help="stands for S3: s3://BUCKET/KEY is FOLDER/BUCKET/KEY")
    end.add_argument("--async-output", default="s3://simulate/async", metavar="S3URI", help="S3OutputPath")


def _add_rules(parser: argparse.ArgumentParser) -> None:
    rules = parser.add_argument_group("rules and chaos")
    rules.add_argument("--health-check-timeout", type=float, metavar="SECONDS", help="the same as --limit start-up=…")
    rules.add_argument("--limit", action="append", default=[], metavar="RULE=NUMBER", help="change a limit; repeatable")
    kinds = "; ".join(f"{kind}[={default:g}]: {text}" for kind, (default, text) in KINDS.items())
    rules.add_argument("--chaos", default="", metavar="KIND[=NUMBER],…", help=kinds)
    rules.add_argument("--seed", type=int, help="random seed of chaos and routing")
    rules.add_argument("--strict", action="store_true", help="exit code 3 when a rule was broken")


def _options(given: argparse.Namespace) -> Options:
    """Raises ValueError."""
    if given.instances < 1:
        raise ValueError("--instances must be 1 or more")
    if not 0 <= given.port <= 65535:
        raise ValueError("--port must be from 0 to 65535; 0 chooses a free port")
    if given.models and not given.models.is_dir():
        raise ValueError(f"--models {given.models}: there is no such folder")
    if given.model_data and not given.model_data.exists():
        raise ValueError(f"--model-data {given.model_data}: there is no such file or folder")
    if not re.fullmatch(r"s3://[^/]+/.+", given.async_output):
        raise ValueError(f"--async-output {given.async_output}: must be s3://BUCKET/PREFIX")
    return Options(
        image=given.image,
        engine=given.engine,
        serve=given.serve,
        isolation=given.isolation,
        model_data=given.model_data,
        models=given.models,
        instances=given.instances,
        host=given.host,
        port=given.port,
        endpoint_name=given.endpoint_name,
        environment=dict(_pair("--env", each) for each in given.env),
        memory=_memory(given.memory) if given.memory else memory_limit(),
        rules=_rules(given),
        routing=given.routing,
        s3=given.s3,
        async_output=given.async_output,
        chaos=_chaos(given),
        strict=given.strict,
    )


def _rules(given: argparse.Namespace) -> Rules:
    pairs = [_pair("--limit", each) for each in given.limit]
    if given.health_check_timeout is not None:
        pairs.append(("start-up", str(given.health_check_timeout)))
    for name, _ in pairs:
        if name not in RULES:
            raise ValueError(f"--limit: there is no rule {name!r}; the rules are {', '.join(RULES)}")
        if not RULES[name].limit:
            raise ValueError(f"--limit: the rule {name} has no limit")
    return with_limits({name: _positive(name, text) for name, text in pairs})


def _chaos(given: argparse.Namespace) -> Rates:
    try:
        return parse_rates(given.chaos, given.seed)
    except ValueError as err:
        raise ValueError(f"--chaos: {err}") from err


def _positive(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError(f"{name}={text}: must be a number above 0")
    return number


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"{option} {text}: must be NAME=VALUE")
    return name, value


def _memory(text: str) -> int:
    match = re.fullmatch(r"(\d+)([kmg]?)b?", text.lower())
    if not match or not int(match[1]):
        raise ValueError(f"--memory {text}: must be a number of bytes, or a number and k, m or g, like 4g")
    return int(match[1]) * UNITS[match[2]]
