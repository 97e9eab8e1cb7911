"""Core-seconds per request as `python -m bench run` measured them: docs/benchmarks/results/PROCESSOR/results.json."""

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.errors import DeployError

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "results"
WORK = {  # scenario -> what a million of it are
    "resnet50-8": "JPEGs of 768×576 by ResNet-50",
    "resnet50-int8-8": "the same, INT8 for ONNX Runtime",
    "resnet50-openvino-int8-8": "the same, INT8 for OpenVINO",
    "yolov5n-8": "JPEGs of 768×576 by YOLOv5n",
    "yolov5n-openvino-int8-8": "the same, INT8 for OpenVINO",
    "text-8-16": "texts of 8 tokens by MiniLM",
    "text-128-16": "texts of 128 tokens by MiniLM",
}


@dataclass(frozen=True)
class Work:
    """What one request is, and what it takes of a processor."""

    name: str
    core_seconds: float


def measured(processor: str, folder: Path = FOLDER) -> list[Work]:
    """The figures of that kind of processor; none where there was no run on one. DeployError when they cannot be
    read."""
    file = folder / processor / "results.json"
    try:
        return list(_read(json.loads(file.read_text(encoding="utf-8"))["results"]["samples"]))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as err:
        raise DeployError(f"{file} has no results of the benchmark: {err!r}") from None


def _read(samples: dict[str, dict[str, list[dict[str, float]]]]) -> Iterator[Work]:
    for scenario, name in WORK.items():
        if own := samples.get(scenario, {}).get("ours"):
            yield Work(name, statistics.median(round_["cpu_ms"] for round_ in own) / 1000)
