"""python -m bench [run | quick | profile | curves]: compares this project with other servers on this machine."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import environments, machine, repository, scenarios
from bench.platform import end_on_sigterm
from bench.repository import CACHE, ROOT, Unprepared
from bench.scenarios import Scope

PAGES = ROOT / "docs/benchmarks/results"
COMMANDS = {
    "run": "every server and scenario, about 25 minutes; writes docs/benchmarks/results/PROCESSOR.md",
    "quick": "all but fronts with OpenVINO, five scenarios, about 3 minutes; writes .cache/bench/quick.md",
    "tiny": "this server, the limit and Triton, in seconds: only tests that the bench works",
    "profile": "where this server spends a request's time",
    "curves": "cost against body size, batch, callers and number of models",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 0, or 1 after printing what to do."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--out", type=page_name, help="the page to write, NAME.md; its pictures go into NAME")
        if name == "run":
            command.add_argument("--peers", nargs="+", choices=scenarios.EVERYONE, default=scenarios.EVERYONE)
            command.add_argument("--scenarios", nargs="+", choices=sorted(scenarios.BY_NAME), metavar="SCENARIO")
            command.add_argument("--rounds", type=int, default=scenarios.FULL.rounds)
            command.add_argument("--seconds", type=int, default=scenarios.FULL.seconds, help="seconds per round")
        if name == "curves":
            text = "curves to measure; the page keeps the last figures of the others"
            command.add_argument("--curves", nargs="+", metavar="CURVE", help=text)
    options = parser.parse_args(arguments)
    end_on_sigterm()
    try:
        return run(options)
    except Unprepared as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def page_name(text: str) -> Path:
    """The path of a Markdown page."""
    if not text.endswith(".md"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end with .md")
    return Path(text)


def run(options: argparse.Namespace) -> int:
    if options.command in ("profile", "curves"):
        from bench import curves, profile

        folder = repository.prepare(scenarios.FULL_MODELS, CACHE / "repository")
        if options.command == "profile":
            profile.profile(folder, options.out)
        else:
            curves.curves(folder, options.out, options.curves or curves.NAMED)
        return 0
    compare(scope_of(options), options.command, options.out)
    return 0


def scope_of(options: argparse.Namespace) -> Scope:
    """What a command measures."""
    if options.command != "run":
        return {"quick": scenarios.QUICK, "tiny": scenarios.TINY}[options.command]
    full, chosen = scenarios.FULL, options.scenarios
    peers = tuple(name for name in scenarios.EVERYONE if name == "ours" or name in options.peers)
    followed = {scenarios.BY_NAME[name].rate_of for name in chosen or ()}
    rows = tuple(s for s in full.scenarios if not chosen or s.name in {*chosen, *followed})
    return Scope(
        scenarios=rows,
        peers=peers,
        rounds=max(1, options.rounds),
        seconds=max(1, options.seconds),
        starts=0 if chosen else full.starts,
        archives=0 if chosen else full.archives,
        calls=full.calls,
    )


def compare(scope: Scope, command: str, out: Path | None) -> None:
    from bench import measure, report

    page = out or (PAGES / f"{machine.kind()}.md" if command == "run" else CACHE / f"{command}.md")
    if command != "tiny":
        environments.install(environments.REPORT)
    begun = time.monotonic()
    results = measure.run(scope, lambda text: print(f"{time.monotonic() - begun:4.0f} s  {text}", flush=True))
    report.write(results, scope, f"python -m bench {command}", page)
    for row in report.targets(results):
        if row["value"] is not None:
            print(f"{row['verdict']:22} {row['value']:8.2f}  {row['bound']:15} {row['target']}")
    print(f"written: {page}")


if __name__ == "__main__":
    sys.exit(main())
