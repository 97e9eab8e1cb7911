"""Which models have TensorRT plans, and what is done with each: every state, every setting."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from serving.repository.fingerprint import Build, Fingerprint, Hardware
from serving.repository.plans import (
    Abilities,
    Decision,
    Step,
    Version,
    abilities,
    after_failure,
    decide,
    plan_model,
    repositories_with_plans,
)
from serving.settings.table import Settings
from tests.support.stand_ins import Nvidia

T4 = Hardware("Tesla T4", "7.5", "10.8.0", "12.8.0", "550.54.15")
FITS = Fingerprint(T4, Build("abc", "fp16"))
A10G = replace(FITS, hardware=replace(T4, gpu="NVIDIA A10G", compute_capability="8.6"))
OLD = replace(FITS, hardware=replace(T4, tensorrt="8.6.1"))
CHANGED = replace(FITS, build=replace(FITS.build, source_sha256="xyz"))
HERE = Abilities(True, T4)
SETTINGS = ("auto", "rebuild", "onnxruntime", "onnxruntime_tensorrt", "off")
STATES = [Version("1", *state) for state in product((True, False), ("abc", ""), (None, FITS, A10G, OLD, CHANGED))]
PLACES = [Abilities(*each) for each in product((True, False), (T4, None), ("", "there is no trtexec"))]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("here", PLACES, ids=str)
def test_every_state_has_the_step_that_the_rules_give(here: Abilities, setting: str) -> None:
    for state in STATES:
        decision = decide([state], here, setting)
        step = decision.step
        known = here.hardware and (state.fingerprint or state.source)
        bad = (
            not here.gpu
            or not state.has_plan
            or (known and (state.fingerprint != FITS) and not (state.fingerprint == CHANGED and not state.source))
        )
        if setting == "off" or not bad:
            assert decision == Decision(Step.SERVE), state
        elif not state.source:
            assert step == Step.SERVE and "no model.onnx beside it" in decision.reason, state
        elif not here.gpu or setting.startswith("onnxruntime"):
            assert step == Step.ONNX, state
        elif here.hardware and not here.obstacle:
            assert step == Step.BUILD, state
        else:
            assert step == (Step.FAIL if setting == "rebuild" else Step.ONNX), state
        assert bool(decision.reason) == (setting != "off" and bool(bad)), state


def one(fingerprint: Fingerprint | None = FITS, has_plan: bool = True, source: str = "abc") -> Version:
    return Version("1", has_plan, source, fingerprint)


@pytest.mark.parametrize(
    ("version", "here", "said"),
    [
        (one(A10G), HERE, "version 1: it was built for NVIDIA A10G and this is Tesla T4"),
        (one(OLD), HERE, "it was built with TensorRT 8.6.1 and this is TensorRT 10.8.0"),
        (one(CHANGED), HERE, "it was built from another ONNX file"),
        (one(None), HERE, "it has no fingerprint.json"),
        (one(has_plan=False), HERE, "it has no plan"),
        (one(), Abilities(False, None), "a TensorRT plan needs a GPU"),
        (one(A10G), Abilities(True, T4, "there is no trtexec"), "it cannot be built here: there is no trtexec"),
        (one(has_plan=False), Abilities(True, None), "nvidia-smi does not say which GPU this is"),
    ],
)
def test_the_reason_is_said(version: Version, here: Abilities, said: str) -> None:
    assert said in decide([version], here, "auto").reason


def test_one_version_that_does_not_fit_decides_for_the_model() -> None:
    second = replace(one(A10G), number="2")
    assert decide([one(), second], HERE, "auto").step == Step.BUILD
    assert decide([one(), second], HERE, "onnxruntime").step == Step.ONNX
    without = replace(one(source=""), number="3")
    assert decide([without, second], HERE, "onnxruntime").step == Step.SERVE  # ONNX Runtime could not serve version 3


def test_a_build_that_failed_falls_back_or_ends_the_start() -> None:
    tried = Decision(Step.BUILD, "it has no plan")
    assert after_failure(tried, "auto", "no memory") == Decision(
        Step.ONNX, "it has no plan; it cannot be built here: no memory"
    )
    assert after_failure(tried, "rebuild", "no memory").step == Step.FAIL


def lay_out(folder: Path, config: str, *versions: str, cpu: str = "") -> Path:
    for version in versions:
        (folder / version).mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    if cpu:
        (folder / "configs").mkdir()
        (folder / "configs/cpu.pbtxt").write_text(cpu)
    return folder


PLAN_CONFIG = 'platform: "tensorrt_plan"\n'


@pytest.mark.parametrize(
    "config", [PLAN_CONFIG, "backend:'tensorrt'", '# ours\nmax_batch_size: 8 platform : "tensorrt_plan"']
)
def test_a_configuration_for_tensorrt_is_recognised(tmp_path: Path, config: str) -> None:
    model = plan_model(lay_out(tmp_path / "m", config, "1"), "gpu")
    assert model is not None
    assert (model.plan, model.onnx, [path.name for path in model.loaded]) == ("model.plan", "model.onnx", ["1"])


@pytest.mark.parametrize(
    "config",
    [
        'platform: "onnxruntime_onnx"',
        f"# {PLAN_CONFIG}",
        'backend: "tensorrt_llm"',
        "",
        PLAN_CONFIG + 'cc_model_filenames { key: "7.5" value: "t4.plan" }',
    ],
)
def test_others_are_left_alone(tmp_path: Path, config: str) -> None:
    assert plan_model(lay_out(tmp_path / "m", config, "1"), "gpu") is None


def test_a_model_without_a_configuration_or_a_version_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    assert plan_model(tmp_path / "m", "gpu") is None
    (tmp_path / "n").mkdir()
    assert plan_model(lay_out(tmp_path / "n", PLAN_CONFIG), "gpu") is None


def test_a_plan_of_another_name_has_its_onnx_file_beside_it(tmp_path: Path) -> None:
    model = plan_model(lay_out(tmp_path / "m", PLAN_CONFIG + 'default_model_filename: "net.plan"', "1"), "gpu")
    assert model is not None and (model.plan, model.onnx) == ("net.plan", "net.onnx")


def test_without_a_version_policy_the_latest_version_counts_else_all(tmp_path: Path) -> None:
    latest = plan_model(lay_out(tmp_path / "a", PLAN_CONFIG, "1", "2", "10"), "gpu")
    every = plan_model(lay_out(tmp_path / "b", PLAN_CONFIG + "version_policy { all {} }", "1", "2"), "gpu")
    assert latest is not None and [path.name for path in latest.loaded] == ["10"]
    assert every is not None and [path.name for path in every.loaded] == ["1", "2"]


def test_a_processor_takes_the_configuration_that_is_for_it(tmp_path: Path) -> None:
    folder = lay_out(tmp_path / "m", PLAN_CONFIG, "1", cpu='platform: "onnxruntime_onnx"')
    assert plan_model(folder, "cpu") is None
    assert plan_model(folder, "gpu") is not None


def test_only_repositories_with_plans_that_are_loaded_are_looked_at(tmp_path: Path) -> None:
    lay_out(tmp_path / "a/plain", 'platform: "onnxruntime_onnx"', "1")
    lay_out(tmp_path / "b/net", PLAN_CONFIG, "1")
    settings = Settings(model_repositories=(tmp_path / "a", tmp_path / "b"), device="gpu")
    assert repositories_with_plans(settings) == (1,)
    assert repositories_with_plans(replace(settings, load_models=("plain",))) == ()
    assert repositories_with_plans(replace(settings, tensorrt="off")) == ()
    assert repositories_with_plans(replace(settings, multi_model=True)) == ()


def test_what_stands_in_the_way_of_a_build_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """trtexec missing, TensorRT's library missing, no GPU asked for."""
    nvidia = Nvidia(tmp_path / "nvidia")
    for name, value in nvidia.environ.items():
        monkeypatch.setenv(name, value)
    assert abilities(Settings(device="gpu")).obstacle == ""
    assert abilities(Settings(device="cpu")) == Abilities(False, None)
    nvidia.without_trtexec()
    assert abilities(Settings(device="gpu")).obstacle == "there is no trtexec"
    (nvidia.folder / "libnvinfer.so.10.8.0").unlink()
    assert "which TensorRT Triton has is not known" in abilities(Settings(device="gpu")).obstacle
