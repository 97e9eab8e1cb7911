"""Compare this server's speed with a minimal front, the networks, Triton and four other servers.

python -m bench --out page.md               measures everything (about an hour)
python -m bench --servers ours bare --scenarios text --seconds 2
python -m bench --before ../other-checkout  compares two versions of this project in turns
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np

from bench.load import PROCESSORS, Networks, Round, run_round, send
from bench.scenarios import Scenario, scenarios
from bench.servers import PEERS, NotStarted, Server, alone, running

SERVERS = ("ours", "default", "bare", *PEERS, "triton")
CLOSE = 0.005  # tolerance for the values of an embedding, which are typically about 0.05
COLUMNS = (
    "Server",
    "answers/s",
    "of ours [least, most]",
    "p50 ms",
    "p99 ms",
    "front ms",
    "all ms",
    "refused",
)
FIGURES = ("answers/s", "p50 ms", "p99 ms", "front ms", "all ms")  # columns of the summary
Rounds = dict[Scenario, dict[str, list[Round]]]  # the rounds of each server, keyed by its name


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("--servers", nargs="+", default=list(SERVERS), choices=SERVERS)
    parser.add_argument(
        "--scenarios", nargs="+", default=[""], help="words that the names of the scenarios contain"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each server, in turns")
    parser.add_argument("--seconds", type=int, default=4, help="seconds of a round")
    parser.add_argument(
        "--before",
        type=Path,
        help="another checkout of this project, set up by `make setup models`",
    )
    parser.add_argument(
        "--out", type=Path, help="file that the page is written to; default: the terminal"
    )
    options = parser.parse_args()
    names = options.servers
    before = None
    if options.before:
        names = [*names, "before"]
        before = options.before.resolve()
    measured: Rounds = {}
    try:
        with running(names, before) as servers:
            memory = {server.name: server.memory() for server in servers}
            for scenario in scenarios():
                if any(word in scenario.name for word in options.scenarios):
                    results = measure(scenario, servers, options.rounds, options.seconds)
                    measured[scenario] = results
    except NotStarted as err:
        print(err, file=sys.stderr)
        return 1
    page = render(measured, memory, options.rounds, options.seconds)
    if options.out:
        options.out.write_text(page)
    else:
        print(page)
    return 0


def measure(
    scenario: Scenario, servers: Sequence[Server], rounds: int, seconds: int
) -> dict[str, list[Round]]:
    """Run the rounds of all servers that support the scenario, alternating between the servers.
    While one is measured, the others are suspended. Return the rounds, keyed by the server's name.
    Raise NotStarted if a server's answer is wrong."""
    supporting = [server for server in servers if server.supports(scenario)]
    networks = Networks(scenario)
    if networks.models:
        check_answers(scenario, supporting, networks)
    rates: dict[str, float] = {}  # requests per second in an open loop
    for server in supporting:
        # an open loop takes its share of the rate that this closed loop reaches
        with alone(server, servers):
            warm_up = run_round(server, scenario, seconds if scenario.share else 1)
        rates[server.name] = scenario.share * warm_up.rate
    done: defaultdict[str, list[Round]] = defaultdict(list)
    for _ in range(rounds):
        for server in supporting:
            with alone(server, servers):
                took = run_round(server, scenario, seconds, rates[server.name])
            done[server.name].append(took)
        if networks.models and not scenario.share:
            with alone(None, servers):
                done["limit"].append(networks.run_round(scenario, seconds))
    print(f"measured: {scenario.name}", file=sys.stderr)
    return done


def check_answers(scenario: Scenario, servers: Sequence[Server], networks: Networks) -> None:
    """Raise NotStarted if a server's answer differs from that of the networks alone."""
    for request in scenario.requests:
        expected = gist(networks.predict(request))
        for server in servers:
            answer = gist(json.loads(send(server, request)))
            if not is_same(answer, expected):
                raise NotStarted(
                    f"{server.name} answers {answer} to {scenario.name}, not {expected}"
                )


def gist(answer: Any) -> Any:
    """Return the part of an answer that must be the same for all servers: the best label, or the
    first numbers of an embedding."""
    if isinstance(answer, list):
        return gist(answer[0]) if answer else None
    if not isinstance(answer, dict):
        return None
    if "embedding" in answer:
        return answer["embedding"][:32]
    if answer.get("label"):
        return answer["label"]
    gists = map(gist, answer.values())
    return next((best for best in gists if best), None)


def is_same(answer: Any, expected: Any) -> bool:
    """Return whether two gists are the same, except for the rounding of BF16."""
    if isinstance(expected, list) and isinstance(answer, list):
        return np.allclose(answer, expected, rtol=0, atol=CLOSE)
    return bool(answer == expected)


def render(measured: Rounds, memory: dict[str, int], rounds: int, seconds: int) -> str:
    """Return the text of the page: the summary, and a table for each scenario, with medians, and
    with each server's rate as a ratio to this project's rate in the same round."""
    lines = [
        f"{_processor()}, {PROCESSORS} processors; {rounds} rounds of {seconds} s of each server "
        'in turns, while the others are stopped; ONNX Runtime, FP32, except for "default".',
        "",
        *summary(measured),
        "",
    ]
    rule = _line(*["---"] * len(COLUMNS))
    for scenario, servers in measured.items():
        lines += [f"### {_title(scenario)}", "", _line(*COLUMNS), rule]
        for server, results in servers.items():
            # if this project is not measured, the ratio is 1
            lines.append(row(server, results, servers.get("ours", results)))
        lines.append("")
    lines += ["### Memory after the start", "", _line("Server", "MB"), _line("---", "---")]
    lines += [_line(name, f"{size / 2**20:.0f}") for name, size in memory.items()]
    return "\n".join(lines) + "\n"


def summary(measured: Rounds) -> list[str]:
    """Return the lines of a table with a row for each scenario: this project's figures, and each
    other server's rate divided by this project's. A cell is blank if the server was not measured or
    failed, or if the rate was given, as in an open loop."""
    names = set(chain.from_iterable(measured.values()))
    others = [name for name in (*SERVERS[1:], "before", "limit") if name in names]
    columns = ["Scenario", *FIGURES, *others]
    lines = [_line(*columns), _line(*["---"] * len(columns))]
    for scenario, servers in measured.items():
        good = {name: rounds for name, rounds in servers.items() if not errors(rounds)}
        ours = good.pop("ours", [])
        own = figures(ours) if ours else [""] * len(FIGURES)
        cells = dict.fromkeys(others, "")
        if ours and not scenario.share:
            for name, rounds in good.items():
                cells[name] = f"{median(ratios(rounds, ours)):.2f}"
        lines.append(_line(_title(scenario), *own, *cells.values()))
    return lines


def row(name: str, results: list[Round], ours: list[Round]) -> str:
    """Return a server's row in the table of a scenario."""
    count = errors(results)
    if count:
        blanks = [""] * (len(COLUMNS) - 2)
        return _line(name, f"{count} answers were not 200", *blanks)
    rate, *others = figures(results)
    shares = ratios(results, ours)
    return _line(
        name,
        rate,
        f"{median(shares):.2f} [{shares[0]:.2f}, {shares[-1]:.2f}]",
        *others,
        f"{sum(each.refused for each in results)}",
    )


def errors(results: list[Round]) -> int:
    return sum(each.errors for each in results)


def figures(results: list[Round]) -> list[str]:
    """Return the median of each of FIGURES. "front" is the processor time of nginx and gunicorn per
    answer, and "all" is that of all processes."""
    front = [
        each.processor.get("nginx", 0.0) + each.processor.get("gunicorn", 0.0) for each in results
    ]
    return [
        f"{median(each.rate for each in results):.1f}",
        f"{median(each.p50 for each in results):.1f}",
        f"{median(each.p99 for each in results):.1f}",
        f"{median(front):.2f}",
        f"{median(sum(each.processor.values()) for each in results):.2f}",
    ]


def ratios(results: list[Round], ours: list[Round]) -> list[float]:
    """Return each round's rate divided by this project's rate in the same round, in ascending
    order."""
    pairs = zip(results, ours, strict=True)
    return sorted(theirs.rate / own.rate for theirs, own in pairs)


def _processor() -> str:
    """Return the name of this machine's processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    line = next(line for line in lines if line.startswith("model name"))
    return line.partition(":")[2].strip()


def _title(scenario: Scenario) -> str:
    return f"{scenario.name[0].upper()}{scenario.name[1:]}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    cv2.setNumThreads(1)
    sys.exit(main())
