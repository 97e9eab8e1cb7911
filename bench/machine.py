"""The machine that figures were measured on, and the versions of what was measured."""

import os
import platform
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from bench import environments
from bench.sessions import OPENVINO
from serving.host.machine import processor_features

MAKERS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}  # /proc/cpuinfo's word -> ours
SETS = {  # instruction sets that engines use, by Linux's words for them: the first that is there names the processor
    "AMX": ("amx_bf16", "amx_int8"),
    "AVX512-BF16": ("avx512_bf16",),
    "AVX512-VNNI": ("avx512_vnni",),
    "AVX512": ("avx512f",),
    "AVX2-VNNI": ("avx_vnni",),
    "AVX2": ("avx2",),
    "BF16": ("bf16",),  # of arm64
    "SVE": ("sve",),
    "NEON": ("asimd",),
}


def instruction_sets() -> list[str]:
    """Those of SETS that this processor has, the best first."""
    found = processor_features()
    return [name for name, words in SETS.items() if found.intersection(words)]


def kind() -> str:
    """This kind of processor in one word, as results are kept: intel-amx, amd-avx512-vnni, aarch64-bf16."""
    text = Path("/proc/cpuinfo").read_text()
    maker = next((word for name, word in MAKERS.items() if name in text), platform.machine())
    return "-".join([maker, *instruction_sets()[:1]]).lower()


def facts() -> dict[str, str]:
    """The machine on which the figures were measured."""
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "processor": cpu.partition(":")[2].strip() or platform.machine(),
        "instruction sets": ", ".join(instruction_sets()),
        "processors": str(len(os.sched_getaffinity(0))),
        "memory": f"{int(memory.split()[1]) / 2**20:.0f} GB",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """The versions of the compared servers."""
    names = ["onnxruntime", "numpy", "flask", "gunicorn", "nvidia-pytriton"]
    own = {name: version(name) for name in names + [OPENVINO] * bool(find_spec(OPENVINO))}
    packages = {name: name for name in ("litserve", "bentoml", "mlserver")}
    packages |= {"rayserve": "ray", "infinity": "infinity-emb"}
    return own | {package: environments.versions(name)[package] for name, package in packages.items()}
