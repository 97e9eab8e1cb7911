"""python -m build_engines build | list | inspect | verify | tune | archive | doctor"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from build_engines.config import Serving
from build_engines.draft import BuildError, UsageError
from build_engines.recipes import PRECISIONS, RECIPES, REPOSITORY, TARGETS, Request

INTERRUPTED = 130  # as a shell says it of SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0, 1 for a failure, 2 for a command that cannot be meant so."""
    parsed = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stop cleans up as Ctrl-C does
    try:
        return int(parsed.run(parsed))
    except BuildError as err:
        return _failed(str(err), err.code)
    except ModuleNotFoundError as err:
        return _failed(f"this needs the package '{err.name}', which is not installed: make dev installs it", 1)
    except OSError as err:
        return _failed(str(err), 1)
    except KeyboardInterrupt:
        return _failed("interrupted; nothing was changed", INTERRUPTED)


def _failed(message: str, code: int) -> int:
    print(f"build_engines: {message}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m build_engines", description="Makes what Triton serves.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_build(commands.add_parser("build", help="weights -> a model folder"))
    commands.add_parser("list", help="the models that can be built by name").set_defaults(run=_list)
    inspect = _stored(commands.add_parser("inspect", help="inputs, outputs, size, origin and speed here"), _inspect)
    verify = _stored(
        commands.add_parser("verify", help="the engine against its fp32 reference; 1 when a limit fails"), _verify
    )
    verify.add_argument("--reference", type=Path, metavar="ONNX", help="the fp32 model, when it is not in the cache")
    verify.add_argument("--samples", type=Path, metavar="PATH", help="a folder of images, or a file of texts")
    verify.add_argument("--count", type=_positive, default=0, help="how many samples; all or 100 pages by default")
    tune = _stored(
        commands.add_parser("tune", help="measures instances, threads and batching here; writes the best"), _tune
    )
    tune.add_argument(
        "--callers",
        type=_callers,
        default=(1, 8),
        metavar="N,N",
        help="latency is that of the fewer, throughput that of the more; 1,8",
    )
    tune.add_argument("--dry-run", action="store_true", help="prints the choice and writes nothing")
    archive = _stored(commands.add_parser("archive", help="NAME.tar.gz as SageMaker takes it"), _archive)
    archive.add_argument("--copies", type=_positive, default=0, help="NAME-0.tar.gz …, each under a name of its own")
    archive.add_argument("--out", type=Path, default=Path("dist"), metavar="FOLDER", help="where to; dist")
    inspect.epilog = "The speed is that of the file in this process, without Triton."
    commands.add_parser("doctor", help="what this machine can build and run").set_defaults(run=_doctor)
    return parser


def _stored(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    parser.add_argument("model", metavar="MODEL", help="a folder of the repository")
    parser.add_argument("--repository", type=Path, default=REPOSITORY, metavar="FOLDER", help="the model repository")
    parser.set_defaults(run=run)
    return parser


def _add_build(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_build)
    add = parser.add_argument
    add("model", metavar="MODEL", help="one of `list`, or a name of your own with --weights")
    add("--weights", default="", help="pretrained, random, train, PATH or HUB-ID; the first of `list` by default")
    add("--precision", choices=PRECISIONS, default="fp32", help="auto: what is fastest here and keeps the accuracy")
    add("--for", dest="target", choices=TARGETS, default="auto", help="auto: tensorrt where trtexec and a GPU are")
    add("--out", type=Path, default=REPOSITORY, metavar="REPOSITORY", help="the model repository")
    add("--name", default="", help="the model's folder; MODEL, or MODEL_int8 for INT8 on a CPU")
    add("--client", default="", help="of a model of your own: resnet, yolov5, bert; none: it takes tensors")
    add("--task", default="", help="of BERT: embedding, fill-mask or text-classification")
    add("--labels", type=Path, metavar="FILE", help="one label a line")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the client, a parameter of config.pbtxt; repeatable",
    )
    add("--size", type=_positive, default=0, help="height and width of the input, for what is exported here")
    add(
        "--boxes",
        type=_count,
        default=-1,
        metavar="N",
        help="of YOLOv5: the N likeliest leave the network; 1000; 0: all",
    )
    add("--max-batch-size", type=_count, default=-1, metavar="N", help="0: none, one instance at a time")
    add("--input", action="append", default=[], metavar="[NAME:]DATATYPE:DIMS", help="of TorchScript: FP32:3,224,224")
    add("--calibration", type=Path, metavar="PATH", help="for INT8: a folder of images")
    add("--force", action="store_true", help="build again what is up to date")
    serving = parser.add_argument_group("config.pbtxt")
    serving.add_argument("--instances", type=_positive, default=0)
    serving.add_argument("--preferred-batch-sizes", type=_sizes, default=(), metavar="N,N")
    serving.add_argument("--queue-delay", type=_count, default=0, metavar="MICROSECONDS")
    serving.add_argument("--warm-up", action="store_true", help="Triton runs zeros when it loads the model")
    serving.add_argument("--response-cache", action="store_true")
    serving.add_argument("--versions", default="", metavar="POLICY", help="all, latest:2 or 1,3")
    serving.add_argument(
        "--sequence-control",
        action="append",
        default=[],
        metavar="KIND=INPUT",
        help="start, end, ready or corrid: sequence batching",
    )
    serving.add_argument("--sequence-idle", type=float, default=0.0, metavar="SECONDS")


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _count(text: str) -> int:
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _callers(text: str) -> tuple[int, int]:
    found = _sizes(text)
    if len(found) != 2:
        raise argparse.ArgumentTypeError(f"{text} is not two numbers as 1,8")
    return min(found), max(found)


def request_of(parsed: argparse.Namespace) -> Request:
    """What `build` is asked for; UsageError for a name that cannot be a model's."""
    for name in (parsed.model, parsed.name):
        if name.startswith(".") or "/" in name or name != name.strip():
            raise UsageError(f"'{name}' cannot be the name of a model's folder")
    if parsed.model not in RECIPES and not parsed.weights:
        raise UsageError(
            f"'{parsed.model}' is not known; the models are {', '.join(RECIPES)}; for one of your own add "
            "--weights PATH or HUB-ID"
        )
    serving = Serving(
        parsed.instances,
        parsed.preferred_batch_sizes,
        parsed.queue_delay,
        parsed.warm_up,
        parsed.response_cache,
        parsed.versions,
        parsed.sequence_idle,
    )
    return Request(
        parsed.model,
        parsed.weights,
        parsed.precision,
        _target(parsed.target),
        parsed.out.resolve(),
        parsed.name,
        parsed.client,
        parsed.task,
        parsed.labels,
        parsed.calibration,
        parsed.max_batch_size,
        parsed.size,
        parsed.boxes,
        tuple(parsed.input),
        tuple(parsed.sequence_control),
        dict(_pairs(parsed.set)),
        serving,
    )


def _pairs(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--set {text}: it is NAME=VALUE")
        yield name, value


def _target(target: str) -> str:
    from serving.host.machine import has_gpu
    from serving.preparation import trtexec

    if target != "auto":
        return target
    return "tensorrt" if trtexec.find(os.environ) and has_gpu() else "cpu"


def _build(parsed: argparse.Namespace) -> int:
    from build_engines.building import build

    started = time.monotonic()
    folder, made = build(request_of(parsed), parsed.force)
    print(f"built {folder} in {time.monotonic() - started:.1f} s" if made else f"{folder} is up to date")
    return 0


def _list(parsed: argparse.Namespace) -> int:
    for name, recipe in RECIPES.items():
        print(f"{name:<11} {recipe.summary}; weights: {', '.join(recipe.weights)}")
    print("NAME        your own: --weights PATH (ONNX, TorchScript, a checkpoint) or HUB-ID")
    return 0


def _inspect(parsed: argparse.Namespace) -> int:
    from build_engines.inspection import report
    from build_engines.repository_models import open_model

    for line in report(open_model(parsed.model, parsed.repository)):
        print(line, flush=True)
    return 0


def _verify(parsed: argparse.Namespace) -> int:
    from build_engines.repository_models import open_model
    from build_engines.verification import verify

    scores = verify(open_model(parsed.model, parsed.repository), parsed.reference, parsed.samples, parsed.count)
    for score in scores:
        print(score)
    return 0 if all(score.passed for score in scores) else 1


def _tune(parsed: argparse.Namespace) -> int:
    from build_engines import tuning, tuning_choice
    from build_engines.repository_models import open_model
    from build_engines.running import threads

    stored = open_model(parsed.model, parsed.repository.resolve())
    tuning.check(stored)
    limit = tuning.in_process(stored)
    found = tuning.measure(stored, tuning_choice.candidates(threads()), parsed.callers)
    for line in tuning_choice.table(found, limit, parsed.callers):
        print(line)
    chosen = tuning_choice.choose(found)
    print(f"best here: {chosen}")
    if parsed.dry_run:
        print(f"{stored.config_file} is left as it is (--dry-run)")
        return 0
    before = tuning_choice.write(stored, chosen)
    print(f"written to {stored.config_file}; undo: mv {before} {stored.config_file}")
    return 0


def _archive(parsed: argparse.Namespace) -> int:
    from build_engines.archiving import archive
    from build_engines.downloads import digest

    for path in archive(parsed.model, parsed.repository, parsed.out, parsed.copies):
        print(f"{path} {path.stat().st_size / 1e6:.1f} MB SHA-256 {digest(path)}")
    return 0


def _doctor(parsed: argparse.Namespace) -> int:
    from build_engines.doctor import report

    for line in report():
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
