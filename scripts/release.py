"""Releases a version: python scripts/release.py 1.2.3, or make release VERSION=1.2.3.

It writes the version to serving/__init__.py, and the version and the date to the changelog. Then it
commits both files and tags the commit v1.2.3. It does not push.
"""

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

SOURCE = Path("serving/__init__.py")
CHANGES = Path("CHANGELOG.md")
LINE = re.compile(r'^VERSION = "(\d+\.\d+\.\d+)"', re.MULTILINE)
UNRELEASED = "## [Unreleased]\n"


class ReleaseError(Exception):
    """Raised if the version cannot be released. The message says what to do first."""


def release(version: str, root: Path) -> str:
    """Commit and tag the release, and return the tag. If `check` raises ReleaseError, nothing is
    changed."""
    source = (root / SOURCE).read_text(encoding="utf-8")
    changes = (root / CHANGES).read_text(encoding="utf-8")
    check(version, source, changes, root)
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    (root / SOURCE).write_text(LINE.sub(f'VERSION = "{version}"', source), encoding="utf-8")
    headings = f"{UNRELEASED}\n## [{version}] - {day}\n"
    (root / CHANGES).write_text(changes.replace(UNRELEASED, headings, 1), encoding="utf-8")
    git(root, "commit", "--quiet", "--message", f"Release {version}", str(SOURCE), str(CHANGES))
    git(root, "tag", "--annotate", f"v{version}", "--message", f"Release {version}")
    return f"v{version}"


def check(version: str, source: str, changes: str, root: Path) -> None:
    """Raise ReleaseError if this version cannot be released."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ReleaseError(
            f"'{version}' is not a version: it must be three numbers, as in make release "
            "VERSION=1.2.3"
        )
    current = LINE.search(source)
    if current and _numbers(version) < _numbers(current[1]):
        raise ReleaseError(f"{version} is older than {current[1]}, the version in {SOURCE}")
    _, _, below = changes.partition(UNRELEASED)
    entries, _, _ = below.partition("\n## ")
    if not entries.strip():
        raise ReleaseError(
            f"{CHANGES} has no entry below '{UNRELEASED.strip()}': write what has changed"
        )
    if git(root, "status", "--porcelain"):
        raise ReleaseError("there are changes that are not committed: commit them first")
    if git(root, "tag", "--list", f"v{version}"):
        raise ReleaseError(f"there is a tag v{version} already")


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def git(root: Path, *arguments: str) -> str:
    """Return git's output. Raise CalledProcessError if it fails."""
    return subprocess.run(
        ["git", *arguments], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def main(arguments: list[str]) -> int:
    """Release the version that is the first of `arguments`. Return 0, or 1 if it cannot be
    released."""
    try:
        tag = release(arguments[0] if arguments else "", Path.cwd())
    except ReleaseError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    print(
        f"{tag} is committed and tagged; `git push --follow-tags` publishes it, `make "
        "image` builds it"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
