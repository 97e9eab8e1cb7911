"""Debian's Chromium, driven by Playwright, and the repository of models that the page is tried with."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.harness import PATIENCE, ROOT, link_model

CHROMIUM = "/usr/bin/chromium"
# As root, without a network, and with a camera that shows a moving disc.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
WIDE, PHONE = 1280, 390
# A label that would change the page's title, were it read as HTML.
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, width: int = WIDE, scheme: str = "light") -> Iterator[Page]:
    """The page, loaded; nothing that it does may be refused by its Content-Security-Policy."""
    height = 900 if width == WIDE else 844
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
    """The bundled models, and `hostile`, whose labels are HTML."""
    for name in ("resnet", "yolov5", "bert"):
        link_model(ROOT / "model_repository" / name, folder)
    shutil.copytree(ROOT / "model_repository/resnet", folder / "hostile")
    (folder / "hostile/labels.txt").write_text("\n".join(f"{HOSTILE}{number}" for number in range(10)))
    return folder
