"""`python -m tests.fuzz [TARGET …] [--executions N] [--seed N] [--keep]`: N inputs in all, made
from the seeds and the kept inputs, guided by the coverage of our code (atheris). If a parser fails,
takes more than DEADLINE seconds of processor time or more than MEMORY MB, or waits for HANG
seconds, it names the file with the input and exits with 1. `python -m tests.fuzz TARGET --input
FILE` repeats that input."""

import argparse
import contextlib
import ctypes
import io
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TARGETS = (
    "api",
    "archive",
    "bare",
    "binary",
    "body",
    "config",
    "form",
    "headers",
    "image",
    "npy",
    "packed",
    "parameters",
)
# in seconds; on a busy machine, a second of processor time may take a minute
DEADLINE, HANG = 10, 600
MEMORY, LONGEST = 1024, 16384  # in MB; in bytes of an input
LIBFUZZER = [
    f"-timeout={HANG}",
    f"-rss_limit_mb={MEMORY}",
    f"-max_len={LONGEST}",
    "-print_final_stats=1",
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all"
    )
    parser.add_argument(
        "--executions", type=int, default=1_000_000, help="in all (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", action="store_true", help="inputs that reach new code are added to the corpus"
    )
    parser.add_argument("--input", type=Path, help="run this one file")
    arguments = parser.parse_args()
    if unknown := set(arguments.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}: {', '.join(TARGETS)}")
    targets = arguments.targets or list(TARGETS)
    failed = [
        target
        for target in targets
        if not fuzz(target, arguments.executions // len(targets), arguments)
    ]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def fuzz(target: str, executions: int, arguments: argparse.Namespace) -> bool:
    """Fuzz the target in a separate process, which libFuzzer ends. Return whether no input
    failed."""
    with contextlib.redirect_stderr(io.StringIO()):  # hides the line for each instrumented module
        from tests.fuzz import guided, targets

    with tempfile.TemporaryDirectory() as folder:
        new, known = Path(folder, "new"), Path(folder, "known")
        new.mkdir()
        targets.write_corpus(target, known)
        folders = [str(arguments.input)] if arguments.input else [str(new), str(known)]
        artifacts = Path(tempfile.gettempdir()) / f"fuzz-{target}-"
        options = [
            f"-runs={executions}",
            f"-seed={arguments.seed}",
            f"-artifact_prefix={artifacts}",
            *LIBFUZZER,
        ]
        begun = time.monotonic()
        failed, output = _libfuzzer(guided.fuzz, target, *options, *folders)
        rate = int(_figure("number_of_executed_units", output)) / (time.monotonic() - begun)
        if failed:
            print(
                output,
                f"{target}: failed with --seed {arguments.seed}; the input lies at {artifacts}*",
                sep="\n",
            )
        elif arguments.keep:
            _libfuzzer(guided.fuzz, target, "-merge=1", *LIBFUZZER, str(known), str(new))
            (targets.CORPUS / target).mkdir(exist_ok=True)
            for file in {path.name for path in known.iterdir()} - targets.corpus(target).keys():
                shutil.copy(known / file, targets.CORPUS / target)
        print(
            f"{target}: {_figure('number_of_executed_units', output)} inputs, "
            f"{rate:.0f} a second, {_figure('peak_rss_mb', output)} MB",
            flush=True,
        )
        return not failed


def _libfuzzer(fuzz: Callable[..., None], *arguments: str) -> tuple[bool, str]:
    """Run libFuzzer in a fork, because the instrumented imports take seconds. Return whether it
    failed, and its output."""
    with tempfile.TemporaryFile() as output:
        process = multiprocessing.get_context("fork").Process(
            target=_into, args=(output.fileno(), fuzz, *arguments)
        )
        process.start()
        process.join()
        output.seek(0)
        return process.exitcode != 0, output.read().decode(errors="replace")


def _into(output: int, fuzz: Callable[..., None], *arguments: str) -> None:
    """Run libFuzzer in a forked process. libFuzzer writes the input that failed only at C's exit(),
    and Python would end a fork with _exit(2), so call exit()."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        fuzz(*arguments)
    except SystemExit as end:
        ctypes.CDLL(None).exit(end.code)


def _figure(name: str, output: str) -> str:
    match = re.search(rf"stat::{name}:\s*(\d+)", output)
    return match[1] if match else "0"


if __name__ == "__main__":
    sys.exit(main())
