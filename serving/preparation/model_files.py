"""What is wrong with a model's file, told by opening it; what takes its weights into memory is left to its backend.

What only few models need is imported late: every start waits for this.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving.preparation.onnx_fit import misfits
from serving.repository.model_config import backend_of
from serving.repository.onnx_header import Damaged, Header, read_header

LFS = b"version https://git-lfs.github.com/"  # how a pointer of Git LFS begins (its spec.md)
HEAD = 512  # bytes that are looked at first
COPY_AGAIN = "copy it again, whole"

Finding = tuple[str, str, bool]  # what is wrong, what to do, whether it is config.pbtxt that it stands in


def file_findings(file: Path, config: Any) -> Iterator[Finding]:
    """Of the model's file in one version; `config` is the ModelConfig."""
    if file.is_dir():
        return
    with file.open("rb") as opened:
        head = opened.read(HEAD)
    if general := _general(head):
        yield (*general, False)
    elif file.suffix == ".onnx":
        yield from _onnx(file, config)
    elif file.suffix == ".pt" and backend_of(config) == "pytorch":
        yield from _torchscript(file)
    elif file.suffix == ".xml":
        yield from _openvino(file)
    elif file.suffix == ".py":
        yield from _python(file)


def _general(head: bytes) -> tuple[str, str] | None:
    if not head:
        return "it is empty", COPY_AGAIN
    if head.startswith(LFS):
        return "it is a pointer of Git LFS and not the file", "git lfs install && git lfs pull, where it comes from"
    if head.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html")):
        return "it is a web page", "download the file itself"
    return None


def _onnx(file: Path, config: Any) -> Iterator[Finding]:
    try:
        header = read_header(file)
    except Damaged as err:
        yield str(err), COPY_AGAIN, False
        return
    yield from _external(file, header)
    if backend_of(config) in ("onnxruntime", ""):
        yield from ((*misfit, True) for misfit in misfits(config, header))


def _external(file: Path, header: Header) -> Iterator[Finding]:
    """Weights in other files."""
    for name, size in header.external.items():
        path = file.parent / name
        if not path.is_file():
            yield f"its weights are in {name}, which is not there", f"lay {name} beside it", False
        elif path.stat().st_size < size:
            yield f"its weights are in {name}, which lacks {size - path.stat().st_size} bytes", COPY_AGAIN, False


def _torchscript(file: Path) -> Iterator[Finding]:
    import zipfile

    remedy = "write it with torch.jit.trace(…).save(…), or export the model to ONNX"
    try:
        with zipfile.ZipFile(file) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError):
        yield "it is no TorchScript archive (a zip), or cut short", remedy, False
        return
    if "constants.pkl" not in names:
        what = "a checkpoint of torch.save" if "data.pkl" in names else "another archive"
        yield f"it is {what} and no TorchScript", remedy, False


def _openvino(file: Path) -> Iterator[Finding]:
    if not (weights := file.with_suffix(".bin")).is_file():
        yield f"{file.name} is without its weights", f"lay {weights.name} there", False
    elif b"</net>" not in file.read_bytes()[-HEAD:]:
        yield "it is no model of OpenVINO, or cut short", COPY_AGAIN, False


def _python(file: Path) -> Iterator[Finding]:
    import ast

    try:
        ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as err:
        yield f"it is no Python: {err}", "correct it there", False
