"""Starts Debian's Chromium, driven by Playwright, and makes the repository of models for the tests
of the page."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from tests.build_engines.models import save_constants
from tests.support.harness import PATIENCE, ROOT, link_model, save_graph

CHROMIUM = "/usr/bin/chromium"
# The first two are menus of the address bar, which Chromium loads as pages for each window: they
# cost a second of processor time that no test needs. The others are disabled by Playwright, whose
# list this one replaces.
DISABLED = (
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup"),
    *("AimEnabled", "AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync"),
    *(
        "DestroyProfileOnBrowserClose",
        "HttpsFirstBalancedModeAutoEnable",
        "HttpsUpgrades",
        "LensOverlay",
    ),
    *(
        "MediaRouter",
        "NetworkTimeServiceQuerying",
        "OptimizationHints",
        "PaintHolding",
        "PreconnectToSearch",
    ),
    "ThirdPartyStoragePartitioning",
)
# for running as root and without a network
ARGUMENTS = [
    *(
        f"--disable-features={','.join(DISABLED)}",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
    ),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
WIDE, PHONE = 1280, 390
# a label that would change the page's title if it were parsed as HTML
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"


# models that return the same arrays for each picture: boxes with masks and keypoints, and a map of
# classes
CONSTANTS = """platform: "onnxruntime_onnx"
max_batch_size: 8
input {{ name: "images" data_type: TYPE_FP32 dims: [3, {side}, {side}] }}
parameters {{ key: "client" value {{ string_value: "{client}" }} }}
"""
ZONES = """
output { name: "output0" data_type: TYPE_FP32 dims: [44, 60] }
output { name: "output1" data_type: TYPE_FP32 dims: [32, 80, 80] }
parameters { key: "layout" value { string_value: "yolov5u" } }
parameters { key: "keypoints" value { string_value: "2,3" } }
"""
STREETS = """
output { name: "scores" data_type: TYPE_FP32 dims: [3, 64, 64] }
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
def opened(
    browser: Browser,
    url: str,
    width: int = WIDE,
    scheme: str = "light",
    path: str = "/",
    awaited: str = ".model",
) -> Iterator[Page]:
    """Open a page, and wait for its models. Fail if the page calls another server, or does
    something that its Content-Security-Policy forbids."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    wrong: list[str] = []
    own = (f"{url}/", f"blob:{url}/", "data:")
    page.on(
        "request",
        lambda request: wrong.extend([] if request.url.startswith(own) else [request.url]),
    )
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console",
        lambda message: wrong.extend([message.text] if "Content Security" in message.text else []),
    )
    page.goto(url + path)
    page.wait_for_selector(awaited)
    yield page
    context.close()
    assert wrong == []


def rectangle(element: Locator) -> dict[str, float]:
    bounds = element.evaluate(
        "each => { const {x, y, width, height} = each.getBoundingClientRect(); return {x, "
        "y, width, height}; }"
    )
    assert isinstance(bounds, dict)
    return bounds


def choose(page: Page, model: str) -> None:
    page.get_by_role("radio", name=model).check(force=True)


def make_repository(folder: Path) -> Path:
    """Make a repository of the bundled models, `zones`, `streets` (with HTML as a label) and
    `looks`."""
    for name in ("resnet", "yolov5", "bert"):
        link_model(ROOT / "model_repository" / name, folder)
    make_zones(folder)
    make_streets(folder)
    make_looks(folder)
    return folder


def make_zones(repository: Path) -> None:
    """Save `zones`, which finds a disc and a ring, each with two keypoints, in any picture."""
    ys, xs = np.mgrid[:80, :80].astype(np.float32)
    prototypes = np.zeros((32, 80, 80), np.float32)
    prototypes[0] = 12 - np.hypot(xs - 25, ys - 40)
    prototypes[1] = 4 - np.abs(np.hypot(xs - 55, ys - 40) - 10)
    # rows: box, scores, mask coefficients, keypoints; columns: candidates
    table = np.zeros((4 + 2 + 32 + 6, 60), np.float32)
    for column, (x, score) in enumerate(((100, 0.9), (220, 0.8))):
        points = [x, 160, 0.9, x + 20, 160, 0.2]
        table[:4, column], table[4 + column, column], table[6 + column, column] = (
            (x, 160, 110, 110),
            score,
            1,
        )
        table[38:, column] = points
    save_constants(
        repository / "zones/1/model.onnx", {"output0": table, "output1": prototypes}, side=320
    )
    (repository / "zones/config.pbtxt").write_text(
        CONSTANTS.format(side=320, client="yolov5") + ZONES
    )
    (repository / "zones/labels.txt").write_text("disc\nring\n")


def make_streets(repository: Path) -> None:
    """Save `streets`. For any picture, the left half is road, and the right half is sky above and
    the hostile label below."""
    scores = np.zeros((3, 64, 64), np.float32)
    scores[0, :, :32], scores[1, :32, 32:], scores[2, 32:, 32:] = 1, 1, 1
    save_constants(repository / "streets/1/model.onnx", {"scores": scores})
    config = CONSTANTS.format(side=64, client="semantic_segmentation") + STREETS
    (repository / "streets/config.pbtxt").write_text(config)
    (repository / "streets/labels.txt").write_text(f"road\nsky\n{HOSTILE}\n")


def make_looks(repository: Path) -> None:
    """Save `looks`, which returns the mean colour of each row of a picture minus a grey."""
    graph = """looks (uint8[n, 3, 64, 64] pixels) => (float[n, 192] colours)
        <float grey = {150.0}> {
        floats = Cast <to = 1> (pixels)
        lit = Sub (floats, grey)
        rows = ReduceMean <axes = [3], keepdims = 0> (lit)
        colours = Flatten (rows)
    }"""
    save_graph(graph, repository / "looks/1/model.onnx")
    (repository / "looks/config.pbtxt").write_text(LOOKS)
