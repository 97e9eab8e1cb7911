"""Debian's Chromium, driven by Playwright, and the repository of models that the page is tried with."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.harness import PATIENCE, ROOT, link_model

CHROMIUM = "/usr/bin/chromium"
# The first two are the address bar's menus, pages of Chromium that it loads for each window: a second of processor time
# that no test sees. The others are Playwright's own, which this list replaces.
DISABLED = (
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup"),
    *("AimEnabled", "AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync"),
    *("DestroyProfileOnBrowserClose", "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades", "LensOverlay"),
    *("MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints", "PaintHolding", "PreconnectToSearch"),
    "ThirdPartyStoragePartitioning",
)
# As root, and without a network.
ARGUMENTS = [
    f"--disable-features={','.join(DISABLED)}",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE, PHONE = 1280, 390
# A label that would change the page's title, were it read as HTML.
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"


ZONES = """platform: "onnxruntime_onnx"
input { name: "pixels" data_type: TYPE_UINT8 dims: [3, 320, 320] }
output { name: "output0" data_type: TYPE_FP32 dims: [44, 60] }
output { name: "output1" data_type: TYPE_FP32 dims: [32, 80, 80] }
parameters { key: "client" value { string_value: "yolov5" } }
parameters { key: "layout" value { string_value: "yolov5u" } }
parameters { key: "keypoints" value { string_value: "2,3" } }
"""
STREETS = """platform: "onnxruntime_onnx"
input { name: "pixels" data_type: TYPE_UINT8 dims: [1, 3, 64, 64] }
output { name: "scores" data_type: TYPE_FP32 dims: [1, 3, 64, 64] }
parameters { key: "client" value { string_value: "semantic_segmentation" } }
parameters { key: "resize" value { string_value: "stretch" } }
"""
LOOKS = """platform: "onnxruntime_onnx"
max_batch_size: 8
input { name: "pixels" data_type: TYPE_UINT8 dims: [3, 64, 64] }
output { name: "colours" data_type: TYPE_FP32 dims: [192] }
parameters { key: "client" value { string_value: "image_embedding" } }
parameters { key: "resize" value { string_value: "stretch" } }
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, width: int = WIDE, height: int = 900, scheme: str = "light") -> Iterator[Page]:
    """The page, loaded; nothing that it does may be refused by its Content-Security-Policy."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.extend([message.text] if "Content Security" in message.text else []))
    page.goto(url)
    page.wait_for_selector(".model")
    yield page
    context.close()
    assert wrong == []


def choose(page: Page, model: str) -> None:
    page.get_by_role("radio", name=model).check(force=True)


def make_repository(folder: Path) -> Path:
    """The bundled models, `hostile`, whose labels are HTML, `zones`, `streets` and `looks`."""
    for name in ("resnet", "yolov5", "bert"):
        link_model(ROOT / "model_repository" / name, folder)
    shutil.copytree(ROOT / "model_repository/resnet", folder / "hostile")
    make_zones(folder)
    make_streets(folder)
    make_looks(folder)
    (folder / "hostile/labels.txt").write_text("\n".join(f"{HOSTILE}{number}" for number in range(10)))
    return folder


def make_zones(repository: Path) -> None:
    """`zones`: finds a disc and a ring, each with two keypoints, in any picture."""
    ys, xs = np.mgrid[:80, :80].astype(np.float32)
    prototypes = np.zeros((32, 80, 80), np.float32)
    prototypes[0] = 12 - np.hypot(xs - 25, ys - 40)
    prototypes[1] = 4 - np.abs(np.hypot(xs - 55, ys - 40) - 10)
    table = np.zeros((4 + 2 + 32 + 6, 60), np.float32)  # box, scores, coefficients, keypoints; columns are candidates
    for column, (x, score) in enumerate(((100, 0.9), (220, 0.8))):
        points = [x, 160, 0.9, x + 20, 160, 0.2]
        table[:4, column], table[4 + column, column], table[6 + column, column] = (x, 160, 110, 110), score, 1
        table[38:, column] = points
    arrays = {"output0": table, "output1": prototypes}
    nodes = [helper.make_node("Constant", [], [name], value=from_array(each)) for name, each in arrays.items()]
    save(repository / "zones", ZONES, nodes, (3, 320, 320), **{name: each.shape for name, each in arrays.items()})
    (repository / "zones/labels.txt").write_text("disc\nring\n")


def make_streets(repository: Path) -> None:
    """`streets`: the left half of any picture is road, the rest is sky above and a hostile label below."""
    scores = np.zeros((1, 3, 64, 64), np.float32)
    scores[:, 0, :, :32], scores[:, 1, :32, 32:], scores[:, 2, 32:, 32:] = 1, 1, 1
    node = helper.make_node("Constant", [], ["scores"], value=from_array(scores))
    save(repository / "streets", STREETS, [node], (1, 3, 64, 64), scores=scores.shape)
    (repository / "streets/labels.txt").write_text(f"road\nsky\n{HOSTILE}\n")


def make_looks(repository: Path) -> None:
    """`looks`: the mean colour of each row of a picture, before a grey ground."""
    nodes = [
        helper.make_node("Cast", ["pixels"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Constant", [], ["grey"], value_float=150.0),
        helper.make_node("Sub", ["floats", "grey"], ["lit"]),
        helper.make_node("ReduceMean", ["lit"], ["rows"], axes=[3], keepdims=0),
        helper.make_node("Flatten", ["rows"], ["colours"]),
    ]
    save(repository / "looks", LOOKS, nodes, ("n", 3, 64, 64), colours=("n", 192))


def save(folder: Path, config: str, nodes: list[Any], shape: tuple[Any, ...], **outputs: tuple[Any, ...]) -> None:
    """A model folder; the input is called pixels."""
    pixels = helper.make_tensor_value_info("pixels", TensorProto.UINT8, shape)
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sides) for name, sides in outputs.items()]
    graph = helper.make_graph(nodes, folder.name, [pixels], made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "1").mkdir(parents=True)
    onnx.save(model, folder / "1/model.onnx")
    (folder / "config.pbtxt").write_text(config)
