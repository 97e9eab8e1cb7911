"""Draws bars with their spread; runs in the environment `report` (matplotlib): python -m bench.pictures FOLDER < plan

The plan is {"titles": {name: title}, "charts": {name: {panel: [[label, value, lowest, highest], …]}}}; a panel whose
rows have a fifth element is a curve: [label, [x], [y], x axis' name]. Prints the names of the pictures.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "bench"  # the same figures give the same file
matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text: a quarter of the size
from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: E402

OURS, OTHER, LIMIT = "#1f77b4", "#b0b0b0", "#555555"
PLAIN = FuncFormatter(lambda value, _: f"{value:,g}" if value < 1e6 else f"{value / 1e6:g} M")


def main() -> None:
    folder, plan = Path(sys.argv[1]), json.load(sys.stdin)
    for name, panels in plan["charts"].items():
        filled = {title: rows for title, rows in panels.items() if rows}
        if filled:
            draw(folder / f"{name}.svg", plan["titles"][name], filled)
            print(name)


def draw(path: Path, title: str, panels: dict[str, list[list[Any]]]) -> None:
    """One picture, its panels side by side."""
    height = 1.1 + 0.32 * max(map(len, panels.values()))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4 * len(panels), max(height, 2.0)), squeeze=False)
    for axis, (label, rows) in zip(axes[0], panels.items(), strict=True):
        (curves if isinstance(rows[0][1], list) else bars)(axis, label, rows)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def bars(axis: Any, label: str, rows: list[list[Any]]) -> None:
    """Horizontal ones with a line from the lowest to the highest."""
    names = [row[0] for row in rows]
    values = [row[1] for row in rows]
    spread = [[row[1] - row[2] for row in rows], [row[3] - row[1] for row in rows]]
    colours = [{"this project": OURS, "the limit": LIMIT}.get(name.partition(",")[0], OTHER) for name in names]
    axis.barh(names, values, xerr=spread, color=colours, ecolor="black", capsize=2)
    axis.invert_yaxis()
    axis.set_xlabel(label, fontsize=8)
    axis.tick_params(labelsize=8)


def curves(axis: Any, label: str, rows: list[list[Any]]) -> None:
    """Logarithmic both ways."""
    for name, xs, ys, below in rows:
        axis.plot(xs, ys, marker="o", markersize=3, label=name)
        axis.set_xlabel(below, fontsize=8)
    axis.set_xscale("log")
    axis.set_yscale("log")
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_locator(LogLocator(subs=(1, 3)))
        scale.set_major_formatter(PLAIN)
        scale.set_minor_formatter(NullFormatter())
    axis.set_title(label, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.legend(fontsize=7)


if __name__ == "__main__":
    main()
