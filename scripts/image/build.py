"""Builds the image for `make image`, with ENGINE, or else the first engine that works.

usage: python scripts/image/build.py [cpu | gpu]

The image is tagged IMAGE:TAG and IMAGE:latest or, for gpu, IMAGE:TAG-gpu and IMAGE:gpu. The bill of
materials of the cpu image is written to dist/sbom.json. Labels name the base image, with its digest
if the engine knows it. These variables override the defaults in parentheses: IMAGE
(triton-multi-model), TAG (git describe), ENGINE (docker, podman or buildah), BASE_IMAGE and
TRITON_IMAGE (the ones in the Dockerfile).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ("docker", "podman", "buildah")
TARGETS = ("cpu", "gpu")
DEBIAN = "docker.io/library/debian:bookworm-slim"
LOOK_ALIKE = "localhost/debian:bookworm-slim"
# a key of pip.conf -> the variable that contains its value
PIP_SETTINGS = {
    "index-url": "PIP_INDEX_URL",
    "extra-index-url": "PIP_EXTRA_INDEX_URL",
    "proxy": "PIP_PROXY",
}
BILL = "/opt/program/sbom.json"


class ImageError(Exception):
    """Raised if the image cannot be built. The message says why and what to do."""


def main(arguments: list[str]) -> int:
    """Build the image that `arguments` name. Return 0, 1 after a failure, or 2 for invalid
    arguments."""
    target = arguments[0] if arguments else "cpu"
    if len(arguments) > 1 or target not in TARGETS:
        sys.stderr.write(
            f"unknown arguments: {' '.join(arguments)}\nusage: build.py [{' | '.join(TARGETS)}]\n"
        )
        return 2
    try:
        engine = find_engine(os.environ.get("ENGINE", ""))
        name = build(engine, target, os.environ)
        write_bill(engine, target, name)
    except ImageError as err:
        sys.stderr.write(f"error: {err}\n")
        return 1
    print(f"built {name} with {engine}")  # noqa: T201
    return 0


def find_engine(wanted: str) -> str:
    """Return the engine `wanted` or, if that is "", the first of ENGINES that is installed and
    works. Raise ImageError if none works, or if `wanted` is unknown or does not work."""
    if wanted and wanted not in ENGINES:
        raise ImageError(f"ENGINE={wanted}: it must be one of {', '.join(ENGINES)}")
    names = [wanted] if wanted else list(ENGINES)
    for name in names:
        if shutil.which(name) and _succeeds([name, "info"]):
            return name
    raise ImageError(
        f"none of {', '.join(names)} works here; on Debian as root: apt-get install podman "
        "runc mmdebstrap"
    )


def build(engine: str, target: str, environ: Mapping[str, str]) -> str:
    """Build the image and return its name. Raise ImageError if that fails."""
    image = environ.get("IMAGE") or "triton-multi-model"
    tag = environ.get("TAG") or _git("describe", "--tags", "--always", "--dirty") or "unknown"
    if target == "cpu":
        name = f"{image}:{tag}"
        newest = f"{image}:latest"
        variable = "BASE_IMAGE"
        base = base_image(engine, environ)
    else:
        name = f"{image}:{tag}-gpu"
        newest = f"{image}:gpu"
        variable = "TRITON_IMAGE"
        base = environ.get(variable) or dockerfile_default(variable)
    with tempfile.TemporaryDirectory() as folder:
        command = build_command(engine) + base_labels(engine, base)
        command += pip_secrets(Path(folder), environ)
        for key, value in {variable: base, **labels()}.items():
            command += ["--build-arg", f"{key}={value}"]
        command += ["--target", target, "--tag", name, "--tag", newest, str(ROOT)]
        # With Docker's attestations, the image would become an index of manifests, which SageMaker
        # rejects.
        variables = {**os.environ, "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
        if subprocess.run(command, env=variables, check=False).returncode:
            raise ImageError(f"{engine} cannot build the image: its last lines say why")
    return name


def build_command(engine: str) -> list[str]:
    """Return the engine's build command, with options that make builds reproducible."""
    if engine == "docker":
        return ["docker", "build", "--build-arg", f"SOURCE_DATE_EPOCH={_epoch()}"]
    # Use Docker's format, because OCI's has no HEALTHCHECK. Chroot isolation needs fewer privileges
    # than a container.
    options = "--format docker --isolation chroot --network host --layers --force-rm"
    return [engine, "build", *options.split(), "--timestamp", _epoch()]


def labels() -> dict[str, str]:
    """Return the Dockerfile's build arguments for labels."""
    source = (ROOT / "serving/__init__.py").read_text()
    (version,) = re.findall(r'^VERSION = "(.+?)"', source, re.MULTILINE)
    created = datetime.fromtimestamp(int(_epoch()), UTC)
    return {
        "VERSION": version,
        "REVISION": _git("rev-parse", "HEAD") or "unknown",
        "CREATED": created.isoformat().replace("+00:00", "Z"),
    }


def base_labels(engine: str, base: str) -> list[str]:
    """Return the options for the labels that name the base image, with its digest if the engine
    knows it."""
    name, _, digest = base.partition("@")
    labels = {"name": name, "digest": digest or digest_of(engine, name)}
    return [
        f"--label=org.opencontainers.image.base.{key}={value}"
        for key, value in labels.items()
        if value
    ]


def digest_of(engine: str, name: str) -> str:
    """Return the registry's digest of a local image, or "" if it is unknown."""
    template = "{{.FromImageDigest}}" if engine == "buildah" else "{{index .RepoDigests 0}}"
    done = subprocess.run(
        [engine, "inspect", "--format", template, name], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return ""
    _, _, digest = done.stdout.strip().rpartition("@")
    return digest


def dockerfile_default(argument: str) -> str:
    """Return the default of a build argument in the Dockerfile."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    (value,) = re.findall(rf"^ARG {argument}=(\S+)$", dockerfile, re.MULTILINE)
    return str(value)


def pip_secrets(folder: Path, environ: Mapping[str, str]) -> list[str]:
    """Write pip's indexes and proxy into a file in the folder. Return the options that pass this
    file and pip's certificates to the build without including them in the image."""
    certificates = environ.get("PIP_CERT") or environ.get("SSL_CERT_FILE", "")
    lines = ["[global]"]
    lines += [f"{key} = {environ[name]}" for key, name in PIP_SETTINGS.items() if environ.get(name)]
    options = ["--secret", f"id=pip.conf,src={folder / 'pip.conf'}"]
    if certificates and Path(certificates).is_file():
        lines.append("cert = /run/secrets/ca")
        options += ["--secret", f"id=ca,src={certificates}"]
    (folder / "pip.conf").write_text("\n".join(lines) + "\n")
    return options


def base_image(engine: str, environ: Mapping[str, str]) -> str:
    """Return the base image: BASE_IMAGE, or else the first of LOOK_ALIKE and DEBIAN that is
    present. If neither is, pull DEBIAN. If that fails, build LOOK_ALIKE. Raise ImageError if that
    fails too."""
    if environ.get("BASE_IMAGE"):
        return environ["BASE_IMAGE"]
    for name in (LOOK_ALIKE, DEBIAN):
        if _succeeds([engine, "inspect", name]):
            return name
    if _succeeds([engine, "pull", DEBIAN]):
        return DEBIAN
    sys.stderr.write(f"{DEBIAN} cannot be pulled: making {LOOK_ALIKE} from Debian's packages …\n")
    return make_base(engine)


def make_base(engine: str) -> str:
    """Build the image LOOK_ALIKE from Debian's packages. Raise ImageError if that fails."""
    if not shutil.which("mmdebstrap") or os.geteuid() != 0:
        raise ImageError(
            "a base image needs root and mmdebstrap (apt-get install mmdebstrap), or "
            "BASE_IMAGE, a Debian 12 image"
        )
    with tempfile.TemporaryDirectory() as folder:
        if not _succeeds(["sh", f"{ROOT}/scripts/image/debian", f"{folder}/debian.tar"]):
            raise ImageError("scripts/image/debian failed: run it with a file name to see why")
        Path(folder, "Dockerfile").write_text('FROM scratch\nADD debian.tar /\nCMD ["bash"]\n')
        _output([*build_command(engine), "--tag", LOOK_ALIKE, folder])
    return LOOK_ALIKE


def write_bill(engine: str, target: str, name: str) -> None:
    """Write the bill of materials of the cpu image to dist/sbom.json. Do nothing for the gpu image.
    Raise ImageError if the bill cannot be read."""
    if target == "gpu":
        return
    (ROOT / "dist").mkdir(exist_ok=True)
    (ROOT / "dist/sbom.json").write_text(_read_file(engine, name, BILL))


def _read_file(engine: str, image: str, path: str) -> str:
    if engine != "buildah":
        return _output(
            [engine, "run", "--rm", "--network", "none", "--entrypoint", "cat", image, path]
        )
    container = _output(["buildah", "from", image]).strip()
    try:
        return _output(["buildah", "run", "--isolation", "chroot", container, "cat", path])
    finally:
        _succeeds(["buildah", "rm", container])


def _epoch() -> str:
    """Return the timestamp of the image and its files, in seconds since 1970."""
    return os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct") or "0"


def _git(*arguments: str) -> str:
    """Return git's output, or "" if git fails."""
    done = subprocess.run(
        ["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageError(f"{' '.join(command[:2])}: {done.stderr.strip()}")
    return done.stdout


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
