"""Defines and runs the commands of python -m build_engines: build, list, verify and archive."""

import argparse
import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from build_engines.errors import BuildError, UsageError
from build_engines.recipes import RECIPES
from build_engines.request import REPOSITORY, Request, positive

INTERRUPTED = 130  # the exit code that shells report for a command that SIGINT ended
# A command that is still running this long after an interrupt is interrupted again. This is longer
# than cleaning up takes (up to 6 s).
REPEAT_INTERRUPT_SECONDS = 8.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
OPTION_FIELDS = dataclasses.fields(Request)[1:]  # all except `model`, which has no flag


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (by default sys.argv[1:]) describe. Return the exit code: 0,
    1 after a failure, 2 for a UsageError, or 130 if interrupted. If the parser rejects the
    arguments, exit with 2 instead of returning."""
    parser = make_parser()
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(_describe_unrecognized(unknown))
    try:
        return int(parsed.run(parsed))
    except BuildError as err:
        return _print_failure(str(err), err.code)
    except ModuleNotFoundError as err:
        return _print_failure(
            f"this needs the package '{err.name}', which is not installed: make dev installs it", 1
        )
    except OSError as err:
        return _print_failure(str(err), 1)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)  # stop the timer that _interrupt started
        return _print_failure("interrupted; no model was changed", INTERRUPTED)


def interrupt_at_signals() -> None:
    """Make SIGTERM raise KeyboardInterrupt, as Ctrl-C (SIGINT) does. A library sometimes swallows
    the exception (once in 300 builds), so after both signals a timer raises it again."""
    for number in SIGNALS:
        signal.signal(number, _interrupt)


def ignore_signals() -> None:
    """Ignore the signals that `interrupt_at_signals` handles, if it was called. The command `build`
    calls this just before it publishes the model, so `main` can say that an interrupted command
    changed no model."""
    for number in SIGNALS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_IGN)


def _interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt, and start the timer whose SIGALRM raises it again."""
    signal.setitimer(signal.ITIMER_REAL, REPEAT_INTERRUPT_SECONDS)
    raise KeyboardInterrupt


def _print_failure(message: str, code: int) -> int:
    """Print the message to stderr, and return `code`."""
    print(f"build_engines: {message}", file=sys.stderr)
    return code


def _describe_unrecognized(words: Sequence[str]) -> str:
    """Return argparse's message about unrecognized arguments. If the first one is a setting of a
    client, add how to set it."""
    from build_engines.settings import all_settings

    flag, _, value = words[0].partition("=")
    name = flag.removeprefix("--").replace("-", "_")
    message = f"unrecognized arguments: {' '.join(words)}"
    if name not in all_settings():
        return message
    if not value and len(words) > 1:
        value = words[1]
    return f"{message}; use --set {name}={value}"


def make_parser() -> argparse.ArgumentParser:
    """Return the argument parser. Modules that only one command needs are imported when that
    command runs."""
    parser = argparse.ArgumentParser(
        prog="python -m build_engines", description="Builds the models that Triton serves."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_build(commands.add_parser("build", help="build a model folder from weights"))
    listing = commands.add_parser("list", help="list the models that can be built by name")
    listing.set_defaults(run=_list)
    verify = commands.add_parser(
        "verify", help="compare the engine with its fp32 reference; exit code 1 if a limit fails"
    )
    _add_stored_model(verify, _verify)
    verify.add_argument(
        "--reference", type=Path, metavar="ONNX", help="the fp32 model, if it is not in the cache"
    )
    verify.add_argument(
        "--samples", type=Path, metavar="PATH", help="a folder of images, or a file of texts"
    )
    verify.add_argument("--count", type=positive, default=0, help="number of samples; default: all")
    archive = commands.add_parser("archive", help="make the NAME.tar.gz that SageMaker takes")
    _add_stored_model(archive, _archive)
    archive.add_argument(
        "--copies", type=positive, default=0, help="make NAME-0.tar.gz …, each with its own name"
    )
    archive.add_argument(
        "--out",
        type=Path,
        default=Path("dist"),
        metavar="FOLDER",
        help="output folder; default: dist",
    )
    return parser


def _add_stored_model(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]
) -> None:
    """Add the arguments of a command that reads a model in the repository, and make the command
    call `run`."""
    parser.add_argument("model", metavar="MODEL", help="a folder of the repository")
    parser.add_argument(
        "--repository", type=Path, default=REPOSITORY, metavar="FOLDER", help="the model repository"
    )
    parser.set_defaults(run=run)


def _add_build(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, --force, and a flag for each of OPTION_FIELDS. The flags for these fields have no
    defaults, so that the defaults of Request apply."""
    parser.set_defaults(run=_build)
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a model that `python -m build_engines list` prints, or your own name with --weights",
    )
    parser.add_argument(
        "--force", action="store_true", help="build even if the model is up to date"
    )
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for field in OPTION_FIELDS:
        keywords = dict(field.metadata)
        title = keywords.pop("group")
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        flag = keywords.pop("flag", f"--{field.name.replace('_', '-')}")
        groups[title].add_argument(flag, dest=field.name, default=argparse.SUPPRESS, **keywords)


def request_of(parsed: argparse.Namespace) -> Request:
    """Return the request that the command line describes. Raise UsageError for an invalid MODEL or
    --name, for an unknown MODEL without --weights, and for a --labels file or a --tokenizer folder
    that does not exist."""
    from build_engines.engines.trtexec import find_trtexec
    from serving.host.machine import has_gpu

    arguments = vars(parsed)  # without the flags that the user left out
    fields = {
        field.name: arguments[field.name] for field in OPTION_FIELDS if field.name in arguments
    }
    for name in (parsed.model, fields.get("name", parsed.model)):
        if not name or name.startswith(".") or "/" in name or name != name.strip():
            raise UsageError(f"'{name}' cannot be the name of a model's folder")
    if parsed.model not in RECIPES and "weights" not in fields:
        raise UsageError(
            f"'{parsed.model}' is not known; the models are {', '.join(RECIPES)}; for one "
            "of your own add --weights PATH or HUB-ID"
        )
    fields["inputs"] = tuple(fields.get("inputs", ()))
    fields["settings"] = dict(fields.get("settings", ()))
    fields["repository"] = fields.get("repository", REPOSITORY).resolve()
    fields.setdefault("target", "tensorrt" if find_trtexec() and has_gpu() else "cpu")
    fields.setdefault("load", True)
    return Request(parsed.model, **fields)


def _build(parsed: argparse.Namespace) -> int:
    started = time.monotonic()
    from build_engines.build import build

    folder, built = build(request_of(parsed), parsed.force, before_publishing=ignore_signals)
    if built:
        print(f"built {folder} in {time.monotonic() - started:.1f} s")
        print("make run serves it; docs/models.md shows how to call each kind of model")
    else:
        print(f"{folder} is up to date")
    return 0


def _list(_: argparse.Namespace) -> int:
    for name, recipe in RECIPES.items():
        print(f"{name:<14} {recipe.summary}")
    print(
        "NAME           your own: --weights PATH (ONNX, TorchScript, a checkpoint, a model "
        "of scikit-learn, XGBoost or LightGBM) or HUB-ID"
    )
    return 0


def _verify(parsed: argparse.Namespace) -> int:
    from build_engines.comparison import verify
    from build_engines.stored_model import open_model

    stored = open_model(parsed.model, parsed.repository)
    scores = verify(stored, parsed.reference, parsed.samples, parsed.count)
    for score in scores:
        print(score)
    return 0 if all(score.passed for score in scores) else 1


def _archive(parsed: argparse.Namespace) -> int:
    from build_engines.archive import archive
    from build_engines.build_record import digest

    for path in archive(parsed.model, parsed.repository, parsed.out, parsed.copies):
        kilobytes = path.stat().st_size / 1e3
        print(f"{path} {kilobytes:,.1f} kB SHA-256 {digest(path)}")
    return 0


if __name__ == "__main__":
    interrupt_at_signals()
    sys.exit(main())
