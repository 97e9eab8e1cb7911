"""python -m build_engines MODEL [MODEL …] [--out model_repository]"""

import argparse
import importlib
import time
from pathlib import Path

RECIPES = {
    "resnet": "resnet",
    "yolov5": "yolov5",
    "bert": "bert",
    "resnet50": "resnet",
    "yolov5s": "yolov5",
    "bert_base": "bert",
}
REPOSITORY = Path(__file__).resolve().parents[1] / "model_repository"


def main() -> None:
    """Builds each model that is named into its folder of the repository."""
    parser = argparse.ArgumentParser(prog="python -m build_engines", description=main.__doc__)
    parser.add_argument("model", nargs="+", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, default=REPOSITORY, help="the model repository")
    arguments = parser.parse_args()
    for name in arguments.model:
        folder = arguments.out / name
        print(f"building {name} into {folder} …", flush=True)
        started = time.monotonic()
        importlib.import_module(f"build_engines.{RECIPES[name]}").build(name, folder)
        print(f"built {name} in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
