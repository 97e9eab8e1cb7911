"""`python -m tests.page` takes the screenshots of the page for docs/ and the README."""

import tempfile
from pathlib import Path

from tests.page.browser import PHONE, WIDE, chromium, opened
from tests.support.harness import FP32, ROOT, Server

PICTURES = ((WIDE, "light", "docs/page.png"), (PHONE, "dark", "docs/page-phone.png"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(
            Path(folder), ROOT / "model_repository", SERVE_PAGE="true", **FP32
        ).wait_ready()
        with chromium() as browser:
            for width, scheme, file in PICTURES:
                with opened(browser, server.url, width, scheme=scheme) as page:
                    page.get_by_role("button", name="Use the example").click()
                    page.locator(".box").first.wait_for()
                    page.screenshot(path=ROOT / file)
        server.stop()


if __name__ == "__main__":
    main()
