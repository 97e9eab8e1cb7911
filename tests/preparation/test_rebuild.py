"""What is built, cached, laid out and said before Triton starts; trtexec and the clock are injected."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from serving.errors import LoadFailed
from serving.preparation.rebuild import Rebuilder, own_folder, prepare
from serving.preparation.trtexec import TrtexecError
from serving.repository import fingerprint
from serving.repository.fingerprint import Build, Fingerprint, Hardware, source_sha256
from serving.repository.model_config import parse_config
from serving.repository.plans import Abilities, plan_model
from serving.settings.table import Settings

T4, A10G = Hardware("Tesla T4", "7.5", "10.8.0"), Hardware("NVIDIA A10G", "8.6", "10.8.0")
CONFIG = (
    'platform: "tensorrt_plan" max_batch_size: 8 instance_group { kind: KIND_GPU }\n'
    'input { name: "x" data_type: TYPE_FP32 dims: [-1] } output { name: "y" data_type: TYPE_FP32 dims: [-1] }\n'
)
HERE = Abilities(True, T4)


def make_model(folder: Path, built: Hardware | None = A10G, versions: tuple[str, ...] = ("1",), more: str = "") -> None:
    """With a plan for `built`, or none, an ONNX file and labels."""
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG + more)
    (folder / "labels.txt").write_text("a\nb\n")
    for version in versions:
        (folder / version).mkdir()
        onnx = folder / version / "model.onnx"
        onnx.write_text(f"onnx of {version}")
        if built:
            (folder / version / "model.plan").write_text("old plan")
            profile = {"x": ((1, 1), (4, 9), (8, 99))}
            Fingerprint(built, Build(source_sha256(onnx), "fp16", profile)).write(folder / version)


class Scene:
    """A repository, settings, and a trtexec of which the test says what it does."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.repository, self.cache = folder / "models", folder / "cache"
        given = {
            "model_repositories": (self.repository,),
            "device": "gpu",
            "engine_cache": self.cache,
            "run_dir": folder / "run",
            "start_timeout": 100.0,
        } | settings
        self.settings = Settings(**given)  # type: ignore[arg-type]
        self.built: list[Fingerprint] = []
        self.seconds: list[float] = []
        self.log: list[str] = []
        self.stage: list[str] = []
        self.now, self.takes, self.fault = 0.0, 10.0, ""

    def make(
        self, wanted: Fingerprint, onnx: Path, plan: Path, cache: Path, say: Callable[[str], None], seconds: float
    ) -> None:
        self.built.append(wanted)
        self.seconds.append(seconds)
        self.now += self.takes
        say("autotuning")
        if self.fault:
            raise TrtexecError(self.fault)
        plan.write_text(f"plan from {onnx.read_text()}")
        wanted.write(plan.parent)

    def prepare(self, here: Abilities = HERE) -> Path:
        """The repository as it is shown."""
        clock: Callable[[], float] = lambda: self.now  # noqa: E731
        prepare(self.settings, Rebuilder(self.settings, here, self.log.append, self.stage.append, self.make, clock))
        return self.settings.run_dir / "repositories/0"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_repository_whose_plans_fit_is_shown_as_it_is(scene: Scene) -> None:
    make_model(scene.repository / "net", T4)
    assert (scene.prepare() / "net/1").resolve() == scene.repository / "net/1"
    assert (scene.built, scene.log, scene.cache.exists()) == ([], [], False)


def test_a_plan_of_another_gpu_is_built_again_as_it_was_built(scene: Scene) -> None:
    make_model(scene.repository / "net", A10G)
    shown = scene.prepare()
    (built,) = scene.built
    assert (built.hardware, built.build.precision, built.build.profile["x"][2]) == (T4, "fp16", (8, 99))
    assert (shown / "net/1/model.plan").read_text() == "plan from onnx of 1"
    assert fingerprint.read(shown / "net/1") == built
    assert (scene.repository / "net/1/model.plan").read_text() == "old plan"


def test_all_else_of_the_folder_is_shown_as_it_lies(scene: Scene) -> None:
    make_model(scene.repository / "net", A10G)
    make_model(scene.repository / "fits", T4)
    (scene.repository / "README.md").touch()
    shown = scene.prepare()
    assert sorted(path.name for path in shown.iterdir()) == ["fits", "net"]
    assert sorted(path.name for path in (shown / "net").iterdir()) == ["1", "config.pbtxt", "labels.txt"]
    assert (shown / "net/config.pbtxt").read_text() == CONFIG
    assert (shown / "fits/1").resolve() == scene.repository / "fits/1"


def test_a_plan_without_a_fingerprint_is_built_by_its_configuration(scene: Scene) -> None:
    make_model(scene.repository / "net", None)
    scene.prepare()
    build = scene.built[0].build
    assert (build.precision, build.profile) == ("fp32", {"x": ((1, 1), (4, 128), (8, 512))})
    assert "it has no plan" in scene.log[0]


def test_the_next_start_takes_the_plan_from_the_cache(scene: Scene) -> None:
    make_model(scene.repository / "net", A10G)
    first, second = scene.prepare() / "net/1/model.plan", scene.prepare() / "net/1/model.plan"
    assert len(scene.built) == 1
    assert first.read_text() == second.read_text() == "plan from onnx of 1"
    assert any("taking the plan that was built before" in line for line in scene.log)


def test_another_gpu_another_source_or_another_precision_is_another_plan(scene: Scene) -> None:
    make_model(scene.repository / "net", A10G)
    scene.prepare()
    scene.prepare(Abilities(True, Hardware("NVIDIA L4", "8.9", "10.8.0")))
    (scene.repository / "net/1/model.onnx").write_text("changed")
    assert (scene.prepare() / "net/1/model.plan").read_text() == "plan from changed"
    assert len({built.key() for built in scene.built}) == 3


def test_models_and_versions_are_built_one_after_the_other(scene: Scene) -> None:
    make_model(scene.repository / "a", A10G)
    make_model(scene.repository / "b", A10G, ("1", "2"), "version_policy { all {} }")
    shown = scene.prepare()
    assert [(shown / name / "model.plan").read_text() for name in ("a/1", "b/1", "b/2")] == [
        "plan from onnx of 1",
        "plan from onnx of 1",
        "plan from onnx of 2",
    ]
    assert len(scene.built) == 2  # the first versions of a and b are equal: one plan stands for both


def test_a_version_that_fits_stays_beside_one_that_is_built(scene: Scene) -> None:
    make_model(scene.repository / "net", T4, ("1", "2"), "version_policy { all {} }")
    (scene.repository / "net/2/fingerprint.json").unlink()
    shown = scene.prepare()
    assert [(shown / f"net/{n}/model.plan").read_text() for n in "12"] == ["old plan", "plan from onnx of 2"]


def test_ping_and_the_log_say_what_is_done(scene: Scene) -> None:
    make_model(scene.repository / "net", A10G)
    scene.prepare()
    what = "building the TensorRT plan of 'net' (fp16) for Tesla T4, TensorRT 10.8.0"
    assert scene.stage == [what, f"{what}, 10 s so far: autotuning"]
    assert scene.log[1:] == [f"{what}, which takes minutes", "net: built in 10 s"]
    assert "it was built for NVIDIA A10G and this is Tesla T4" in scene.log[0]


def is_onnx(shown: Path) -> bool:
    config = parse_config((shown / "net/config.pbtxt").read_text())
    return bool(config.platform == "onnxruntime_onnx" and (shown / "net/1/model.onnx").is_file())


def test_a_build_that_fails_leaves_it_to_onnx_runtime(scene: Scene) -> None:
    make_model(scene.repository / "net", A10G)
    scene.fault = "out of memory"
    assert is_onnx(scene.prepare())
    assert "it cannot be built here: out of memory; ONNX Runtime serves model.onnx instead" in scene.log[-1]
    assert scene.log[-1].startswith("WARNING: net: ")
    assert not list(scene.cache.rglob("*.*"))


def test_a_cache_that_cannot_be_written_leaves_it_to_onnx_runtime(scene: Scene) -> None:
    make_model(scene.repository / "net", A10G)
    scene.cache.touch()
    assert is_onnx(scene.prepare())


def test_rebuild_ends_the_start_when_the_build_fails(tmp_path: Path) -> None:
    scene = Scene(tmp_path, tensorrt="rebuild")
    make_model(scene.repository / "net", A10G)
    scene.fault = "out of memory"
    with pytest.raises(LoadFailed, match=r"^the TensorRT model 'net' cannot be served: .*out of memory$"):
        scene.prepare()


@pytest.mark.parametrize("setting", ["onnxruntime", "onnxruntime_tensorrt"])
def test_onnx_runtime_can_be_asked_for(tmp_path: Path, setting: str) -> None:
    scene = Scene(tmp_path, tensorrt=setting)
    make_model(scene.repository / "net", A10G)
    assert is_onnx(scene.prepare())
    assert scene.built == []


def test_auto_spends_three_quarters_of_the_start_and_no_more(scene: Scene) -> None:
    for name in "abc":
        make_model(scene.repository / name, A10G)
        (scene.repository / name / "1/model.onnx").write_text(name)
    scene.takes = 40.0
    shown = scene.prepare()
    assert scene.seconds == [75.0, 35.0]
    assert "SERVE_START_TIMEOUT leaves no time for it" in scene.log[-1]
    assert (shown / "b/1/model.plan").is_file()
    assert "onnxruntime_onnx" in (shown / "c/config.pbtxt").read_text()


def test_rebuild_has_no_bound_of_its_own(tmp_path: Path) -> None:
    scene = Scene(tmp_path, tensorrt="rebuild")
    make_model(scene.repository / "net", A10G)
    scene.prepare()
    assert scene.seconds == [float("inf")]


def test_without_a_gpu_the_onnx_file_is_served_on_the_processor(tmp_path: Path) -> None:
    scene = Scene(tmp_path, device="cpu")
    make_model(scene.repository / "net", A10G)
    shown = scene.prepare(Abilities(False, None))
    assert is_onnx(shown)
    assert "KIND_CPU" in (shown / "net/config.pbtxt").read_text()
    assert "a TensorRT plan needs a GPU" in scene.log[0]


def test_a_plan_that_nothing_can_be_done_about_is_left_to_triton_and_told(scene: Scene) -> None:
    make_model(scene.repository / "net", A10G)
    (scene.repository / "net/1/model.onnx").unlink()
    assert (scene.prepare() / "net/1").resolve() == scene.repository / "net/1"
    assert "no model.onnx beside it to build it from; it is served as it lies" in scene.log[0]


def test_a_repository_that_cannot_be_written_is_no_obstacle(scene: Scene) -> None:
    make_model(scene.repository / "net", A10G)
    folders = [scene.repository, scene.repository / "net", scene.repository / "net/1"]
    for folder in folders:
        folder.chmod(0o555)
    shown = scene.prepare()
    for folder in folders:
        folder.chmod(0o755)
    assert (shown / "net/1/model.plan").read_text() == "plan from onnx of 1"
    assert not list(scene.repository.rglob(".*"))


def test_what_is_shown_changes_in_one_step(scene: Scene) -> None:
    """A second start of Triton lays it out anew while clients may read."""
    make_model(scene.repository / "net", A10G)
    target = scene.prepare()
    before = target.readlink()
    assert scene.prepare().readlink() != before
    assert before.is_dir()


def test_a_cache_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(PermissionError, match=r"SERVE_ENGINE_CACHE=.* can be written to by others"):
        own_folder(shared)
    made = own_folder(tmp_path / "a/b")
    assert made.stat().st_mode & 0o777 == 0o700
    assert made.stat().st_uid == os.geteuid()


def test_the_configuration_of_a_folder_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    scene = Scene(tmp_path, tensorrt="onnxruntime")
    make_model(scene.repository / "net", A10G, more="no protobuf")
    with pytest.raises(LoadFailed, match=r"config\.pbtxt cannot be read: 3:1 : "):
        scene.prepare()


def test_a_second_repository_is_left_alone(scene: Scene, tmp_path: Path) -> None:
    make_model(scene.repository / "net", A10G)
    (tmp_path / "others/plain/1").mkdir(parents=True)
    (tmp_path / "others/plain/config.pbtxt").write_text('backend: "python"')
    scene.settings = replace(scene.settings, model_repositories=(tmp_path / "others", scene.repository))
    scene.prepare()
    assert [path.name for path in (scene.settings.run_dir / "repositories").iterdir() if path.is_symlink()] == ["1"]
    assert plan_model(tmp_path / "others/plain", "gpu") is None
