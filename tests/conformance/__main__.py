"""Send every row of the table to both servers, and write conformance.md: python -m
tests.conformance."""

import sys

from tests.conformance.table import PAGE, observe, render


def main() -> int:
    rows = observe()
    PAGE.write_text(render(rows), encoding="utf-8")
    wrong = [row for row in rows if row.verdict == "BUG"]
    for row in wrong:
        print(f"BUG: {row.behaviour.title}\n  native: {row.native}\n  ours:   {row.ours}")
    print(f"{len(rows)} rows, {len(wrong)} bugs; see {PAGE.name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
