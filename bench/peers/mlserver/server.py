"""Writes MLServer's settings into BENCH_SCRATCH and becomes `mlserver start`."""

import json
import os
import shutil
import sys
from pathlib import Path

from bench.subject import names

WORKERS = 2
BATCHED = {"bert": {"max_batch_size": 16, "max_batch_time": 0.002}}


def write(folder: Path, port: int) -> None:
    """settings.json, and model-settings.json of each model. MLServer's other ports follow its own."""
    settings = {
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": port + 1,
        "metrics_port": port + 2,
        "metrics_dir": str(folder / "metrics"),
        "parallel_workers": WORKERS,
        "debug": False,
        "use_structured_logging": False,
    }
    (folder / "metrics").mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(settings))
    for name in names():
        (folder / name).mkdir(exist_ok=True)
        model = {"name": name, "implementation": "bench.peers.mlserver.runtime.Runtime"} | BATCHED.get(name, {})
        (folder / name / "model-settings.json").write_text(json.dumps(model))


if __name__ == "__main__":
    target = Path(os.environ["BENCH_SCRATCH"]) / "mlserver"
    write(target, int(os.environ["BENCH_PORT"]))
    program = shutil.which("mlserver", path=str(Path(sys.executable).parent)) or "mlserver"
    os.execv(program, [program, "start", str(target)])
