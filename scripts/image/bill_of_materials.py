"""Writes the image's bill of materials (SBOM) as CycloneDX JSON. The Dockerfile runs this script.

    python bill_of_materials.py ENVIRONMENT DPKG_FOLDER OUTPUT

cyclonedx-bom lists the Python packages; this script adds the Debian packages.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

FIELDS = r"${db:Status-Status}\t${Package}\t${Version}\t${Architecture}\n"


def bill_of_materials(environment: Path, dpkg: Path) -> dict[str, Any]:
    """Return the bill of materials: the packages of the Python environment, and the Debian packages
    that dpkg's folder lists as installed."""
    tool = Path(sys.executable).with_name("cyclonedx-py")
    list_python = [tool, "environment", "--output-reproducible", environment / "bin/python"]
    list_debian = ["dpkg-query", "--admindir", dpkg, "--show", "-f", FIELDS]
    bill: dict[str, Any] = json.loads(_output(list_python))
    bill["components"] += debian_packages(_output(list_debian))
    return bill


def debian_packages(listing: str) -> list[dict[str, str]]:
    """Convert the output of dpkg-query, with FIELDS in each line, to CycloneDX components. Leave
    out packages that are not installed."""
    rows = (line.split("\t") for line in listing.splitlines())
    return [_component(*row) for status, *row in rows if status == "installed"]


def _component(name: str, version: str, architecture: str) -> dict[str, str]:
    purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _output(command: list[Any]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def main() -> None:
    environment, dpkg, output = map(Path, sys.argv[1:])
    bill = bill_of_materials(environment, dpkg)
    output.write_text(json.dumps(bill, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
