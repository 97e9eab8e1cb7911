"""infinity-emb: its own server with ONNX Runtime, `infinity_emb v2 --engine optimum`, as its README has it for CPUs.

It has sentence embeddings only, and serves `bert` alone. Its pooling has to be named: with this engine it takes the
first token's vector for a sentence otherwise.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import onnxruntime as ort

from bench.sessions import SHORT, SPINNING, processors

MODEL = "bert"
QUIET = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


class Session(ort.InferenceSession):  # type: ignore[misc]
    """A session with the settings of every other peer's (bench.sessions), which infinity-emb leaves to the defaults."""

    def __init__(self, path: Path, **given: Any) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = processors()
        options.add_session_config_entry(*SPINNING[SHORT])
        super().__init__(path, **given | {"sess_options": options})


def model_folder() -> Path:
    """The model in a folder as it is on Hugging Face's hub. Its ONNX file is beside config.json and not below `onnx`,
    where optimum 2 does not find it by the path that infinity-emb gives."""
    repository, folder = Path(os.environ["BENCH_REPOSITORY"]), Path(os.environ["BENCH_SCRATCH"]) / MODEL
    shutil.copytree(repository / MODEL / "tokenizer", folder)
    (folder / "model.onnx").symlink_to(repository / MODEL / "1" / "model.onnx")
    return folder


def main() -> None:
    os.environ.update(QUIET)
    os.chdir(model_folder())  # and names it ".", for the same reason
    ort.InferenceSession = Session  # before optimum imports it
    from infinity_emb.cli import cli

    given = {"--model-id": ".", "--served-model-name": MODEL, "--engine": "optimum", "--pooling-method": "mean"}
    given |= {"--host": "127.0.0.1", "--port": os.environ["BENCH_PORT"], "--log-level": "warning"}
    sys.argv[1:] = ["v2", *(word for pair in given.items() for word in pair)]
    cli()


if __name__ == "__main__":
    main()
