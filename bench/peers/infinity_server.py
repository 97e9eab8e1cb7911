"""Serves the text model with infinity-emb, which runs the same ONNX file as the other servers, in
ONNX Runtime."""

import os
import shutil
import sys
from pathlib import Path


def main(port: str, scratch: Path) -> None:
    model = Path(os.environ["BENCH_REPOSITORY"]) / "bert"
    folder = scratch / "bert"
    shutil.copytree(model / "tokenizer", folder)
    shutil.copy(next(model.glob("*/model.onnx")), folder)
    os.chdir(folder)  # optimum finds a file only by a path relative to the model
    os.environ |= {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(scratch / "hub")}
    options = f"v2 --model-id . --served-model-name bert --host 127.0.0.1 --port {port}"
    options += " --engine optimum --device cpu --pooling-method mean --log-level warning"
    sys.argv[1:] = options.split()
    from infinity_emb.cli import cli  # imported here, because it reads the variables

    cli()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
