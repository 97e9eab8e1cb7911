"""The commands and their arguments; a command's module is imported when it runs, with the packages that it needs."""

import argparse
from collections.abc import Callable
from pathlib import Path

from build_engines.recipes import RECIPES
from build_engines.request import PRECISIONS, REPOSITORY, TARGETS


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m build_engines", description="Makes what Triton serves.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_build(commands.add_parser("build", help="build a model folder from weights"))
    commands.add_parser("list", help="list the models that can be built by name").set_defaults(run=_list)
    inspect = _stored(
        commands.add_parser("inspect", help="print a model's inputs, outputs, size, origin and speed here"), _inspect
    )
    verify = _stored(
        commands.add_parser("verify", help="compare the engine with its fp32 reference; exit code 1 if a limit fails"),
        _verify,
    )
    verify.add_argument("--reference", type=Path, metavar="ONNX", help="the fp32 model, if it is not in the cache")
    verify.add_argument("--samples", type=Path, metavar="PATH", help="a folder of images, or a file of texts")
    verify.add_argument("--count", type=_positive, default=0, help="number of samples; default: all, or 100 pages")
    archive = _stored(commands.add_parser("archive", help="make the NAME.tar.gz that SageMaker takes"), _archive)
    archive.add_argument("--copies", type=_positive, default=0, help="make NAME-0.tar.gz …, each with its own name")
    archive.add_argument(
        "--out", type=Path, default=Path("dist"), metavar="FOLDER", help="output folder; default: dist"
    )
    inspect.epilog = "The speed is measured in this process, without Triton."
    return parser


def _stored(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    parser.add_argument("model", metavar="MODEL", help="a folder of the repository")
    parser.add_argument("--repository", type=Path, default=REPOSITORY, metavar="FOLDER", help="the model repository")
    parser.set_defaults(run=run)
    return parser


def _add_build(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_build)
    parser.add_argument("model", metavar="MODEL", help="one of `list`, or your own name with --weights")
    parser.add_argument(
        "--out", type=Path, default=REPOSITORY, metavar="REPOSITORY", help="the model repository to build into"
    )
    parser.add_argument(
        "--name", default="", help="the model's folder; default: MODEL, or MODEL_int8 for INT8 on a CPU"
    )
    parser.add_argument("--force", action="store_true", help="build even if the model is up to date")
    _add_network(parser.add_argument_group("the network"))
    _add_engine(parser.add_argument_group("the engine"))
    _add_client(parser.add_argument_group("the client"))
    _add_serving(parser.add_argument_group("how Triton serves it (config.pbtxt)"))


def _add_network(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--weights", default="", help="pretrained, random, train, PATH or HUB-ID; default: the first in `list`")
    add("--size", type=_positive, default=0, help="height and width of the input, for networks exported here")
    add(
        "--boxes",
        type=_count,
        default=-1,
        metavar="N",
        help="for YOLOv5: the network returns only the N likeliest boxes; default: 1000; 0: all",
    )
    add(
        "--input",
        action="append",
        default=[],
        metavar="[NAME:]DATATYPE:DIMS",
        help="for TorchScript, such as FP32:3,224,224; for scikit-learn a column each, such as age:FP32:1",
    )
    add(
        "--allow-pickle",
        action="store_true",
        help="read a .joblib or .pkl file, which runs the code that is in it: only of those whom you trust",
    )


def _add_engine(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--for",
        dest="target",
        choices=TARGETS,
        help="auto: what is measured to be fastest here; default: tensorrt with trtexec and a GPU, else cpu",
    )
    add(
        "--precision",
        choices=PRECISIONS,
        help="auto: the fastest here that keeps the accuracy; default: fp32, with --for auto auto",
    )
    add("--calibration", type=Path, metavar="PATH", help="for INT8: a folder of images")


def _add_client(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--client",
        default="",
        help="for your own model: image-classification (resnet), image-embedding, semantic-segmentation, "
        "object-detection (yolov5), detr, bert, table; default: none, it takes tensors",
    )
    add("--task", default="", help="for texts, where config.json does not decide: one of those in docs/models.md")
    add("--tokenizer", type=Path, metavar="FOLDER", help="for an ONNX file of texts: its tokenizer's files")
    add("--labels", type=Path, metavar="FILE", help="file with one label per line")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of the client, as a parameter in config.pbtxt; repeatable",
    )


def _add_serving(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--max-batch-size", type=_count, default=-1, metavar="N", help="0: no batches, one instance at a time")
    add("--instances", type=_positive, default=0, metavar="N", help="how many run side by side")
    add("--preferred-batch-sizes", type=_sizes, default=(), metavar="N,N", help="of dynamic batching")
    add("--queue-delay", type=_count, default=0, metavar="MICROSECONDS", help="that dynamic batching waits for more")
    add("--warm-up", action="store_true", help="let Triton run the model on zeros when it loads it")
    add("--response-cache", action="store_true", help="let Triton repeat the answer to the same tensors")
    add("--versions", default="", metavar="POLICY", help="all, latest:2 or 1,3")
    add(
        "--sequence-control",
        action="append",
        default=[],
        metavar="KIND=INPUT",
        help="for sequence batching; KIND is start, end, ready or corrid",
    )
    add("--sequence-idle", type=float, default=0.0, metavar="SECONDS", help="after which a session is forgotten")


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


def _build(parsed: argparse.Namespace) -> int:
    from build_engines.commands import build

    return build.run(parsed)


def _list(_: argparse.Namespace) -> int:
    for name, recipe in RECIPES.items():
        print(f"{name:<11} {recipe.summary}; weights: {', '.join(recipe.weights)}")
    print(
        "NAME        your own: --weights PATH (ONNX, TorchScript, a checkpoint, a model of scikit-learn, XGBoost or "
        "LightGBM) or HUB-ID"
    )
    return 0


def _inspect(parsed: argparse.Namespace) -> int:
    from build_engines.commands import inspect

    return inspect.run(parsed)


def _verify(parsed: argparse.Namespace) -> int:
    from build_engines.commands import verify

    return verify.run(parsed)


def _archive(parsed: argparse.Namespace) -> int:
    from build_engines.commands import archive

    return archive.run(parsed)
