"""The packages of serving/ ("rooms") and which imports which: `python -m tests.support.imports` prints it.

A file belongs to the room in which it lies, so a new file is covered. The rooms stand on floors, the lowest first.
"""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("errors", "headers", "budget", "sessions", "named_value")  # of all
REQUEST = ("served_model", "decoding", "request")  # what a request is, for all that answer one
ROOMS: dict[str, tuple[str, ...]] = {
    "host": ("serving/host/*.py",),
    "words": tuple(f"serving/{name}.py" for name in WORDS),
    "codecs": ("serving/codecs/*.py",),
    "settings": ("serving/settings/*.py",),
    "repository": ("serving/repository/*.py",),
    "supervisor": ("serving/supervisor/*.py", "serve"),
    "triton": ("serving/triton/*.py",),
    "clients": ("clients/*.py", "clients/_text/*.py"),
    "request": tuple(f"serving/{name}.py" for name in REQUEST),
    "bodies": ("serving/bodies/*.py",),
    "inference": ("serving/inference/*.py",),
    "multimodel": ("serving/multimodel/*.py",),
    "preparation": ("serving/preparation/*.py",),
    "reload": ("serving/reload/*.py",),
    "front": ("serving/front/*.py", "predictor.py", "wsgi.py"),
}


@cache
def files(room: str) -> list[Path]:
    return sorted(path for pattern in ROOMS[room] for path in ROOT.glob(pattern))


def imported(path: Path) -> set[str]:
    """The names of the modules in a file's import statements."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


@cache
def room_of(module: str) -> str | None:
    """The room of a module of this project; None for other modules and for the packages themselves."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return next((room for room in ROOMS if file in files(room)), None)


@cache
def arrows() -> dict[tuple[str, str], int]:
    """{(importing room, imported room): how many files of the first import the second}."""
    counted: dict[tuple[str, str], int] = defaultdict(int)
    for room in ROOMS:
        for path in files(room):
            for other in {room_of(name) for name in imported(path)} - {room, None}:
                counted[room, str(other)] += 1
    return dict(counted)


def main() -> None:
    between = arrows()
    for room in ROOMS:
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files(room))
        below = ", ".join(f"{other} ({between[room, other]})" for other in ROOMS if (room, other) in between)
        print(f"{room:12} {len(files(room)):3} files {lines:5} lines -> {below or 'nothing'}")
    print(f"{len(ROOMS)} rooms, {len(between)} arrows")


if __name__ == "__main__":
    main()
