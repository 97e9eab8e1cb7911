"""Tests the page at / in a real browser: what a new user does, and what the page shows."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from tests.endpoint.hostile_models import make_text_models
from tests.model_lifecycle.test_multimodel import make_model
from tests.model_lifecycle.test_on_demand import on_demand
from tests.page.browser import PHONE, WIDE, choose, chromium, make_repository, opened, rectangle
from tests.simulate.simulation import Simulation
from tests.support.callers import run_caller
from tests.support.harness import PATIENCE, ROOT, Server, link_model, module_server, wait_until
from tests.support.hostile_images import turned

pytestmark = pytest.mark.stack

EXAMPLE = ROOT / "model_repository/yolov5/example.jpg"
DIGIT = ROOT / "model_repository/resnet/example.png"
KEYS = {
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
}
MOST = 1000 * PATIENCE  # milliseconds
# the languages that are shown for every model
LANGUAGES = ["curl", "Python requests", "Python boto3"]
expect.set_options(timeout=MOST)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def make_ranking(repository: Path) -> None:
    make_text_models(repository, ["ranking"])


server = module_server(make_repository, make_ranking, SERVE_PAGE="true")


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    with opened(browser, server.url) as tab:
        yield tab


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a picture that no model folder contains: a part of an example, turned upside down by its
    EXIF data."""
    file = tmp_path_factory.mktemp("own") / "my page.jpg"
    Image.open(EXAMPLE).crop((100, 0, 931, 600)).rotate(180, expand=True).save(
        file, quality=92, exif=turned(3)
    )
    return file


def expect_count(page: Page, selector: str, count: int) -> None:
    expect(page.locator(selector)).to_have_count(count)


def expect_text(page: Page, selector: str, text: str | list[str]) -> None:
    expect(page.locator(selector)).to_have_text(text)


def expect_part(page: Page, selector: str, text: str) -> None:
    """Expect the element's text to contain this text."""
    expect(page.locator(selector)).to_contain_text(text)


def test_log_the_address_of_the_page(server: Server) -> None:
    server.expect_message(f"the page: http://localhost:{server.port}/")


def upload(page: Page, file: Path) -> None:
    page.locator("#file").set_input_files(file)


def asked(server: Server, file: Path, model: str = "yolov5", **parameters: Any) -> Any:
    query = {"model_name": model, **parameters}
    reply = server.post(
        params=query, data=file.read_bytes(), headers={"Content-Type": "image/jpeg"}
    )
    return reply.json()["predictions"][0]


def picture_of(page: Page) -> dict[str, float]:
    """Wait until the browser has loaded the picture. Return its rectangle."""
    image = page.locator(".frame img")
    wait_until(
        lambda: image.evaluate("each => each.complete && each.naturalWidth > 0"),
        "the picture is loaded",
    )
    return rectangle(image)


def within(image: dict[str, float], element: Locator) -> list[float]:
    """Return the element's left, top, width and height, relative to the image."""
    bounds = rectangle(element)
    corner = [bounds["x"] - image["x"], bounds["y"] - image["y"]]
    return [*corner, bounds["width"], bounds["height"]]


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_draw_boxes_of_an_uploaded_picture_at_the_right_places(
    browser: Browser, server: Server, own: Path, width: int
) -> None:
    expected = asked(server, own)
    assert len(expected["detections"]) > 4
    with opened(browser, server.url, width) as page:
        upload(page, own)
        expect_count(page, ".box", len(expected["detections"]))
        image = picture_of(page)
        assert image["x"] >= 0 and image["x"] + image["width"] <= width
        scale = image["width"] / expected["image"]["width"]
        for box, detection in zip(page.locator(".box").all(), expected["detections"], strict=True):
            xmin, ymin, xmax, ymax = (scale * corner for corner in detection["box"].values())
            wanted = [xmin, ymin, xmax - xmin, ymax - ymin]
            assert within(image, box) == pytest.approx(wanted, abs=1)
            assert box.inner_text() == detection["label"]


def test_draw_masks_and_keypoints_in_place(page: Page, server: Server) -> None:
    expected = asked(server, EXAMPLE, "zones")
    assert [each["label"] for each in expected["detections"]] == ["disc", "ring"]
    choose(page, "zones")
    upload(page, EXAMPLE)
    expect_count(page, ".shapes polygon", 2)
    image = picture_of(page)
    scale = image["width"] / expected["image"]["width"]
    drawn = zip(page.locator(".shapes g").all(), reversed(expected["detections"]), strict=True)
    for shape, detection in drawn:  # the best object is drawn last, on top of the others
        [polygon] = detection["polygons"]
        xs, ys = ([scale * each for each in polygon[axis::2]] for axis in (0, 1))
        wanted = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
        assert within(image, shape.locator("polygon")) == pytest.approx(wanted, abs=3)
        seen, unseen = detection["keypoints"]
        assert seen["score"] > 0.5 > unseen["score"]
        left, top, width, height = within(image, shape.locator("circle"))
        point = (scale * seen["x"], scale * seen["y"])
        assert (left + width / 2, top + height / 2) == pytest.approx(point, abs=1)
    page.locator(".results .rows li").first.hover()
    expect_count(page, ".shapes g.marked", 1)
    page.get_by_label("masks").select_option("none")
    expect_count(page, ".shapes polygon", 0)
    expect_count(page, ".shapes circle", 2)


def test_draw_a_class_map_with_the_opacity_of_the_slider(page: Page, server: Server) -> None:
    expected = asked(server, EXAMPLE, "streets")
    choose(page, "streets")
    upload(page, EXAMPLE)
    names = [f"{each['label']}{100 * each['share']:.1f} %" for each in expected["segments"]]
    assert names[0].startswith("road50")
    expect_text(page, ".bars li", names)
    picture, veil = picture_of(page), rectangle(page.locator(".map"))
    assert veil == pytest.approx(picture, abs=1)
    width, height = expected["image"]["width"], expected["image"]["height"]
    # one pixel of each of the three classes
    corners = {0: (1, 1), 1: (width - 2, 1), 2: (width - 2, height - 2)}
    swatches = [page.locator(".bars .bar").nth(each).evaluate(BAR) for each in range(3)]
    ids = [each["class_id"] for each in expected["segments"]]
    wait_until(lambda: page.locator(".map").evaluate(PIXEL, [1, 1])[3] == 255, "the map is drawn")
    for class_id, swatch in zip(ids, swatches, strict=True):
        assert page.locator(".map").evaluate(PIXEL, corners[class_id])[:3] == pytest.approx(
            swatch, abs=1
        )
    page.get_by_role("slider", name="Opacity of the map").fill("0.2")
    expect(page.locator(".map")).to_have_css("opacity", "0.2")
    page.get_by_label("map", exact=True).select_option("none")
    expect_count(page, ".map", 0)
    expect_text(page, ".bars li", names)
    assert page.title() == "Try the models"


# the colour of a canvas' pixel, and the colour of the first stop of a bar, which is also that of
# its swatch
PIXEL = "(canvas, [x, y]) => [...canvas.getContext('2d').getImageData(x, y, 1, 1).data]"
BAR = (
    "bar => getComputedStyle(bar).backgroundImage.match(/rgb\\((\\d+), (\\d+), "
    "(\\d+)\\)/).slice(1).map(Number)"
)


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_show_a_similarity_matrix_of_pictures(
    browser: Browser, server: Server, own: Path, width: int
) -> None:
    files = [EXAMPLE, DIGIT, own]
    with opened(browser, server.url, width) as page:
        choose(page, "looks")
        page.locator("#file").set_input_files(DIGIT)
        expect(page.get_by_role("heading", name="192 numbers")).to_be_visible()
        page.locator("#file").set_input_files(files)
        cells = page.locator(".matrix tbody td")
        expect(cells).to_have_count(9)
        vectors = [asked(server, file, "looks")["embedding"] for file in files]
        products = [
            sum(a * b for a, b in zip(one, other, strict=True))
            for one in vectors
            for other in vectors
        ]
        assert len({round(product, 2) for product in products}) > 1
        assert [float(text) for text in cells.all_inner_texts()] == pytest.approx(
            products, abs=0.0051
        )
        expect(page.get_by_role("rowheader").get_by_role("img", name=own.name)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        check(page)


def test_send_the_request_again_when_a_slider_moves(page: Page, server: Server) -> None:
    upload(page, EXAMPLE)
    expect_count(page, ".box", len(asked(server, EXAMPLE)["detections"]))
    fewer = len(asked(server, EXAMPLE, confidence=0.94)["detections"])
    assert 0 < fewer < len(asked(server, EXAMPLE)["detections"])
    page.get_by_role("slider", name="confidence").fill("0.94")
    expect_count(page, ".box", fewer)
    page.get_by_role("slider", name="confidence").fill("0.01")
    page.get_by_role("slider", name="iou").fill("1")
    everything = len(asked(server, EXAMPLE, confidence=0.01, iou=1)["detections"])
    assert everything > len(asked(server, EXAMPLE)["detections"])
    expect_count(page, ".box", min(everything, 300))


def test_clear_the_error_about_a_wrong_file_with_the_next_picture(
    page: Page, tmp_path: Path
) -> None:
    bad = tmp_path / "<b onmouseover='document.title=1'>bad.jpg"
    bad.write_bytes(b"no picture at all")
    upload(page, bad)
    error = page.locator("#error")
    expect(page.get_by_role("alert")).to_contain_text("400 · decoding_error")
    page.get_by_role("tab", name="Code").click()
    expect_part(page, "#code-0 pre", "bad.jpg")
    assert page.locator("b").count() == 0
    upload(page, EXAMPLE)
    expect(page.locator(".box").first).to_be_visible()
    expect(error).to_be_empty()


def test_show_classes_as_bars_and_let_the_user_choose_a_version(page: Page, server: Server) -> None:
    choose(page, "resnet")
    page.get_by_label("Version").select_option("1")
    upload(page, DIGIT)
    expect_count(page, ".bars li", 5)
    best = asked(server, DIGIT, "resnet")["classes"][0]
    expect(page.locator(".bars li").first).to_have_text(
        f"{best['label']}{100 * best['score']:.1f} %"
    )
    page.get_by_label("top_k").fill("2")
    expect_count(page, ".bars li", 2)


SHOWN: dict[str, tuple[Any, str, list[str]]] = {
    "entities": (
        {"entities": [{"label": "PER", "score": 0.9, "word": "Ada", "start": 5, "end": 8}]},
        "mark",
        ["AdaPER"],
    ),
    "masks": ({"masks": [[{"token": "cat", "score": 0.9}]]}, ".bars .name", ["cat"]),
    "probabilities": (
        {"prediction": 2, "probabilities": {"1": 0.2, "2": 0.8}},
        ".bars .name",
        ["2", "1"],
    ),
    "a record": ({"species": "setosa", "score": 0.25}, ".plain tbody td", ["setosa", "0.25000"]),
    "anything": ({"deep": {"er": [1, 2]}}, "#result pre", ['[{"deep": {"er": [1, 2]}}]']),
}


@pytest.mark.parametrize("kind", SHOWN)
def test_render_each_kind_of_prediction(page: Page, kind: str) -> None:
    """Building models for these kinds takes minutes, so the test contains their replies."""
    prediction, selector, texts = SHOWN[kind]
    page.route("**/invocations", lambda route: route.fulfill(json={"predictions": [prediction]}))
    choose(page, "bert")
    page.get_by_role("textbox", name="Text 1").fill("\N{GRINNING FACE} is Ada <b>here</b>")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(selector)).to_have_text(texts)


def test_highlight_an_answer_in_its_passage(page: Page) -> None:
    question = {
        "question": "Who?",
        "context": "\N{GRINNING FACE} It is Ada, who wrote the first program of all.",
    }
    answers = [
        {"answer": "Ada", "score": 0.9, "start": 8, "end": 11},
        {"answer": "", "score": 0.1, "start": 0, "end": 0},
    ]
    model = {"name": "reader", "versions": [], "client": "bert", "codec": "json", "parameters": []}
    page.route("**/models", lambda route: route.fulfill(json={"models": [model]}))
    page.route("**/examples/reader", lambda route: route.fulfill(json=question))
    page.route(
        "**/invocations", lambda route: route.fulfill(json={"predictions": [{"answers": answers}]})
    )
    page.reload()
    expect(page.get_by_label("question")).to_have_value("Who?")
    page.get_by_role("button", name="Run").click()
    expect_text(page, "mark", "Ada")
    expect_text(page, ".bars .name", ["Ada", "(no answer)"])


def test_accept_dropped_and_pasted_pictures(page: Page) -> None:
    choose(page, "resnet")
    shown = page.locator(".frame img")
    give = """([bytes, kind]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], `${kind}.png`, {type: "image/png"}));
        const Kind = kind === "drop" ? DragEvent : ClipboardEvent;
        const about = {dataTransfer: data, clipboardData: data, bubbles: true, cancelable: true};
        document.body.dispatchEvent(new Kind(kind, about));
    }"""
    page.get_by_role("tab", name="Code").wait_for(state="hidden")
    for kind in ("drop", "paste"):
        page.evaluate(give, [list(DIGIT.read_bytes()), kind])
        expect_part(page, "#code-0 pre", f"@{kind}.png")
        expect(shown).to_be_visible()
    expect_count(page, ".bars li", 5)


@pytest.mark.parametrize("names", [["it's mine.png"], ["it's mine.png", 'a "b".png']])
def test_get_the_same_predictions_with_the_copied_code(
    page: Page, server: Server, tmp_path: Path, names: list[str]
) -> None:
    files = [tmp_path / name for name in names]
    for file in files:
        file.write_bytes(DIGIT.read_bytes())
    choose(page, "resnet")
    page.get_by_label("top_k").fill("3")
    page.locator("#file").set_input_files(files)
    expect_count(page, ".bars li", 3 * len(files))
    expected = asked(server, DIGIT, "resnet", top_k=3)
    page.get_by_role("tab", name="Code").click()
    for number, command in ((0, ["bash", "-ec"]), (1, [sys.executable, "-c"])):
        text = page.locator(f"#code-{number} pre").text_content() or ""
        done = subprocess.run(
            [*command, text], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        assert str(expected["classes"][0]["class_id"]) in done.stdout
        assert done.stdout.count("score") == 3 * len(files)


def copied(page: Page, language: str) -> str:
    """Copy the code in this language, run it, and return its output."""
    page.get_by_role("tab", name=language, exact=True).click()
    text = page.locator(".code pre:visible").text_content() or ""
    if not language.startswith("curl"):
        return run_caller("-c", text)
    return subprocess.run(["bash", "-ec", text], capture_output=True, check=True, text=True).stdout


def test_embed_with_the_copied_code_of_other_clients(page: Page, server: Server) -> None:
    choose(page, "bert")
    page.get_by_role("textbox", name="Text 1").fill("The soup's ready.")
    page.get_by_label("dimensions").fill("4")
    page.get_by_role("button", name="Run").click()
    page.get_by_role("tab", name="Code").click()
    body = {"model_name": "bert", "inputs": "The soup's ready.", "parameters": {"dimensions": 4}}
    wanted = server.post(json=body).json()["predictions"][0]["embedding"]
    entries = json.loads(copied(page, "curl /v1/embeddings"))["data"]
    assert entries[0]["embedding"] == wanted
    for language in ("Python openai", "LangChain"):
        (vector,) = json.loads(copied(page, language))
        assert vector == pytest.approx(wanted, abs=1e-7)
    page.get_by_label("normalize").uncheck()
    expect_text(page, "#code [role=tab]", LANGUAGES)


def test_rank_with_the_copied_code_of_other_clients(page: Page, server: Server) -> None:
    choose(page, "ranking")
    page.get_by_label("top_k").fill("1")
    page.get_by_role("button", name="Run").click()
    page.get_by_role("tab", name="Code").click()
    results = json.loads(copied(page, "curl /v2/rerank"))["results"]
    assert len(results) == 1
    printed = json.loads(copied(page, "Python cohere"))
    assert printed == [[each["index"], each["relevance_score"]] for each in results]


def test_show_the_json_and_the_time_of_each_stage(page: Page) -> None:
    upload(page, EXAMPLE)
    expect_count(page, "#times .rows .name", 5)
    page.get_by_role("tab", name="JSON").click()
    expect_part(page, "#json pre", '"model_name": "yolov5"')


def test_use_the_page_with_the_keyboard_alone(page: Page) -> None:
    expect(page.get_by_role("radio", name="yolov5")).to_be_checked()
    for _ in range(3):  # the skip link, the link to the API page, the models
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("radio", name="streets")).to_be_checked()
    page.get_by_role("button", name="Use the example").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".frame img")).to_be_visible()
    page.get_by_role("tab", name="Times").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#json pre")).to_be_visible()


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_pass_the_accessibility_checks_of_axe(
    browser: Browser, server: Server, width: int, scheme: str
) -> None:
    with opened(browser, server.url, width, scheme=scheme) as page:
        upload(page, EXAMPLE)
        expect(page.locator(".box").first).to_be_visible()
        check(page)
        choose(page, "bert")
        page.get_by_role("button", name="Run").click()
        page.get_by_role("button", name="Add a text").click()
        page.get_by_role("textbox", name="Text 2").fill("The soup is ready.")
        page.get_by_role("button", name="Run").click()
        expect(page.locator(".matrix")).to_be_visible()
        page.get_by_role("tab", name="Code").click()
        check(page)
        choose(page, "streets")
        upload(page, EXAMPLE)
        expect(page.locator(".map")).to_be_visible()
        check(page)


def check(page: Page) -> None:
    problems = Axe().run(page).response["violations"]
    serious = [
        (each["id"], each["nodes"][0]["html"])
        for each in problems
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_allow_only_the_own_server_in_the_content_security_policy(server: Server) -> None:
    policy = server.get("/").headers["Content-Security-Policy"]
    assert "unsafe" not in policy and "*" not in policy and "default-src 'none'" in policy


def test_list_every_route_on_the_api_page(browser: Browser, server: Server) -> None:
    described = server.get("/openapi.json").json()["paths"]
    operations = {
        (method.upper(), path) for path, methods in described.items() for method in methods
    }
    with opened(browser, server.url, path="/docs", awaited=".opblock") as tab:
        expect_count(tab, ".opblock", len(operations))
        shown = {
            (
                block.locator(".opblock-summary-method").inner_text(),
                block.locator("[data-path]").get_attribute("data-path"),
            )
            for block in tab.locator(".opblock").all()
        }
        assert shown == operations
        tab.locator(".opblock", has=tab.locator('[data-path="/invocations"]')).first.click()
        expect(tab.get_by_text("Request body").first).to_be_visible()


def test_show_when_triton_is_killed_and_when_it_is_back(page: Page, server: Server) -> None:
    with server.unattended():
        server.kill(server.pid("tritonserver"))
        expect_text(page, "#health", "Not ready")
        expect_part(page, "#banner", "tritonserver")
    expect_text(page, "#health", "Ready")
    expect(page.locator("#banner")).to_be_hidden()


def test_say_that_a_chosen_model_is_being_loaded(browser: Browser, tmp_path: Path) -> None:
    held = tmp_path / "models/held"
    make_model(held, 7, initialize="hold()", label="seven")
    (tmp_path / "models/broken.tar.gz").write_bytes(b"no archive")
    with on_demand(tmp_path, SERVE_PAGE="true") as server, opened(browser, server.url) as page:
        choose(page, "held")
        wait_until((held / "1/held").exists, "it is being loaded")
        expect_text(page, "#input", "held is being loaded …")
        (held / "1/go").touch()
        expect(page.get_by_role("button", name="Run")).to_be_visible()
        expect(page.get_by_role("radio", name="held")).to_be_focused()
        expect(page.locator("#error")).to_be_empty()
        choose(page, "broken")
        expect_part(page, "#error", "broken.tar.gz cannot be unpacked")


def test_call_the_simulator_with_the_boto3_code(
    browser: Browser,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mine.jpg").write_bytes(EXAMPLE.read_bytes())
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    link_model(ROOT / "model_repository/yolov5", tmp_path / "models")
    repository = {"SERVE_MODEL_REPOSITORY": str(tmp_path / "models")}
    with (
        Simulation(ROOT / "serve", environment=repository) as simulation,
        opened(browser, server.url) as page,
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL", simulation.url)
        upload(page, tmp_path / "mine.jpg")
        page.get_by_role("tab", name="Code").click()
        page.get_by_role("tab", name="Python boto3").click()
        for classes in ("", "1,4"):
            page.get_by_label("classes").fill(classes)
            expect_part(page, "#code-2 pre", f'"classes": "{classes}"' if classes else "b64encode")
            exec(page.locator("#code-2 pre").text_content() or "", {})
            expect_count(page, ".box", capsys.readouterr().out.count("'score'"))


def test_serve_only_files_of_the_page(server: Server) -> None:
    for path in (
        "/page/",
        "/page/none.js",
        "/page/../nginx.conf",
        "/page/%2e%2e/serve",
        "/examples/none",
    ):
        assert server.get(path).status_code in (404, 503), path
    assert server.post("/", data="x").status_code == 405
