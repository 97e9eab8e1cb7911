"""The manifests in kubernetes/: rendered, valid, true to each other and to what serve does."""

import copy
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from predictor import create_app
from serving.settings.table import TABLE, Settings
from serving.supervisor.supervisor import BACKOFF_MAX
from tests.kubernetes import kustomize
from tests.kubernetes.kustomize import Manifest
from tests.support.harness import PATIENCE, ROOT, Server, make_scale, wait_until

KUBERNETES = ROOT / "kubernetes"
NAME = "triton-multi-model"
LABELS = {"app.kubernetes.io/name": NAME}
COMPONENTS = sorted(path.parent.name for path in KUBERNETES.glob("components/*/kustomization.yaml"))
PLACES = ["base", *(f"overlays/{path.name}" for path in sorted(KUBERNETES.glob("overlays/*"))), "kserve"]
COMBINATIONS = [(name,) for name in COMPONENTS] + [tuple(COMPONENTS)]
RENDERINGS = PLACES + [f"base with {' '.join(names)}" for names in COMBINATIONS]
ON_ITS_OWN = [name for name in RENDERINGS if name != "kserve"]
UNITS = {"Mi": 2**20, "Gi": 2**30}
SMALLEST_SHARED_MEMORY = 256 * 2**20  # less, and serve warns at its start


def kustomized(folder: Path) -> list[Manifest]:
    """The manifests as we render them, and as kubectl does where there is one."""
    manifests = kustomize.render(folder)
    if shutil.which("kubectl"):
        command = ["kubectl", "kustomize", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        assert "deprecated" not in done.stderr
        theirs = list(yaml.safe_load_all(done.stdout))
        assert sorted(theirs, key=lambda one: (one["kind"], one["metadata"]["name"])) == manifests
    return manifests


@pytest.fixture(scope="session")
def render(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Manifest]]:
    """The manifests of a folder, or of "base with COMPONENT …", for which a user would write an overlay."""
    copied = tmp_path_factory.mktemp("kubernetes") / "kubernetes"
    shutil.copytree(KUBERNETES, copied)

    @cache
    def rendered(name: str) -> list[Manifest]:
        if " with " not in name:
            return kustomized(KUBERNETES / name)
        components = name.partition(" with ")[2].split()
        folder = copied / "overlays" / "-".join(components)
        folder.mkdir(exist_ok=True)
        lines = ["resources: [../../base]", "components:", *(f"  - ../../components/{part}" for part in components)]
        (folder / "kustomization.yaml").write_text("\n".join(lines))
        return kustomized(folder)

    return lambda name: copy.deepcopy(rendered(name))


def only(manifests: list[Manifest], kind: str) -> Manifest:
    found = [manifest for manifest in manifests if manifest["kind"] == kind]
    assert len(found) == 1, f"{len(found)} of {kind}"
    return found[0]


def pod_of(manifests: list[Manifest]) -> Manifest:
    """The pod's spec, whoever makes it; KServe's has the grace period elsewhere."""
    if any(manifest["kind"] == "Deployment" for manifest in manifests):
        spec: Manifest = only(manifests, "Deployment")["spec"]["template"]["spec"]
        return spec
    service = only(manifests, "InferenceService")["spec"]["predictor"]
    own = {key: service[key] for key in ("terminationGracePeriodSeconds", "automountServiceAccountToken")}
    return {**only(manifests, "ServingRuntime")["spec"], **own}


def container_of(manifests: list[Manifest]) -> Manifest:
    (container,) = pod_of(manifests)["containers"]
    return dict(container)


def environment_of(manifests: list[Manifest]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container_of(manifests)["env"]}


def settings_of(manifests: list[Manifest]) -> Settings:
    return Settings.from_env(environment_of(manifests))


def bytes_of(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


Render = Callable[[str], list[Manifest]]
Check = Callable[[Manifest], None]


@pytest.fixture(scope="session")
def check() -> Check:
    """`schemas.check`; its import takes seconds, for which only the process that runs these tests has to wait."""
    from tests.kubernetes import schemas

    return schemas.check


@pytest.fixture(scope="module")
def server(render: Render, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """What kserve's container runs, but for the place of the models."""
    repository = tmp_path_factory.mktemp("models")
    make_scale(repository)
    variables = environment_of(render("kserve")) | {"SERVE_MODEL_REPOSITORY": str(repository)}
    running = Server(tmp_path_factory.mktemp("serve"), repository, **variables).wait_ready()
    yield running
    assert running.stop() == 0


def test_every_kustomization_is_rendered_here() -> None:
    found = {str(path.parent.relative_to(KUBERNETES)) for path in KUBERNETES.rglob("kustomization.yaml")}
    assert found == {*PLACES, *(f"components/{name}" for name in COMPONENTS)}


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_manifest_is_valid(render: Render, check: Check, name: str) -> None:
    for manifest in render(name):
        check(manifest)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("base", "Deployment"),
        ("base", "HorizontalPodAutoscaler"),
        ("base", "NetworkPolicy"),
        ("overlays/keda", "ScaledObject"),
        ("overlays/keda", "ServiceMonitor"),
        ("kserve", "ServingRuntime"),
        ("kserve", "InferenceService"),
    ],
)
def test_a_misspelt_field_and_a_wrong_type_would_be_found(render: Render, check: Check, name: str, kind: str) -> None:
    manifest = only(render(name), kind)
    misspelt = copy.deepcopy(manifest)
    misspelt["spec"]["replcas"] = 1
    with pytest.raises(Exception, match="replcas"):
        check(misspelt)
    for field in manifest["spec"]:
        wrong = copy.deepcopy(manifest)
        wrong["spec"][field] = "neither a number nor a list nor an object"
        with pytest.raises(Exception, match="neither a number"):
            check(wrong)


@pytest.mark.parametrize("name", ON_ITS_OWN)
def test_what_selects_selects_our_pods(render: Render, name: str) -> None:
    manifests = render(name)
    deployment = only(manifests, "Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert labels == LABELS
    selectors = [
        deployment["selector"]["matchLabels"],
        deployment["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
        only(manifests, "Service")["spec"]["selector"],
        only(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert selectors == [LABELS] * len(selectors)
    account = only(manifests, "ServiceAccount")
    assert account["metadata"]["name"] == deployment["template"]["spec"]["serviceAccountName"]


@pytest.mark.parametrize("name", ["overlays/keda", "base with monitoring"])
def test_prometheus_finds_our_metrics(render: Render, name: str) -> None:
    manifests = render(name)
    monitor, service = only(manifests, "ServiceMonitor")["spec"], only(manifests, "Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] in routes()


def routes() -> set[str]:
    return {rule.rule for rule in create_app(Settings.from_env({})).url_map.iter_rules()}


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_port_is_the_one_that_nginx_listens_on(render: Render, name: str) -> None:
    manifests = render(name)
    (port,) = container_of(manifests)["ports"]
    assert port["containerPort"] == settings_of(manifests).port == 8080
    for manifest in manifests:
        if manifest["kind"] == "Service":
            assert [entry["targetPort"] for entry in manifest["spec"]["ports"]] == [port["name"]]
        if manifest["kind"] == "NetworkPolicy":
            assert manifest["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8080}]}]
            assert "egress" not in manifest["spec"]
            assert manifest["spec"]["policyTypes"] == ["Ingress", "Egress"]


@pytest.mark.parametrize("name", RENDERINGS)
def test_probes_ask_a_route_that_exists_and_outlast_what_serve_repairs_itself(render: Render, name: str) -> None:
    manifests = render(name)
    container, settings = container_of(manifests), settings_of(manifests)
    (port,) = container["ports"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in routes()
        assert container[probe]["httpGet"]["port"] in (port["name"], port["containerPort"])
        assert container[probe]["timeoutSeconds"] > 2, "nginx answers /ping within 2 s, whatever happens"
    for probe in ("startupProbe", "livenessProbe"):
        assert patience(container[probe]) > settings.start_timeout + 20, "serve must give up before the kubelet does"
    assert patience(container["readinessProbe"]) <= 10


def patience(probe: Manifest) -> int:
    """The seconds of failures that it takes until the kubelet acts."""
    return int(probe["periodSeconds"]) * int(probe["failureThreshold"])


@pytest.mark.parametrize("name", RENDERINGS)
def test_a_pod_has_the_time_to_stop_that_serve_takes(render: Render, name: str) -> None:
    manifests = render(name)
    command, pause = container_of(manifests)["lifecycle"]["preStop"]["exec"]["command"]
    needed = float(pause) + settings_of(manifests).stop_timeout + BACKOFF_MAX
    assert command == "sleep"
    assert pod_of(manifests)["terminationGracePeriodSeconds"] >= needed


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_variable_is_a_setting_and_serve_accepts_its_value(render: Render, name: str) -> None:
    known = {variable for row in TABLE for variable in row.variables}
    assert set(environment_of(render(name))) <= known
    settings = settings_of(render(name))
    assert settings.kserve == "true"


@pytest.mark.parametrize("name", RENDERINGS)
def test_the_pod_may_do_no_more_than_the_restricted_standard_allows(render: Render, name: str) -> None:
    pod = pod_of(render(name))
    (container,) = pod["containers"]
    context = pod.get("securityContext", {}) | container["securityContext"]
    assert context["runAsNonRoot"] is True
    users = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert {int(user) for user, _ in users} == {context["runAsUser"]}, "the image's own user"
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "hostPath"} & set(pod)


@pytest.mark.parametrize("name", RENDERINGS)
def test_what_is_written_goes_to_memory_that_the_limit_has_room_for(render: Render, name: str) -> None:
    pod = pod_of(render(name))
    (container,) = pod["containers"]
    places = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    sizes = {volume["name"]: volume["emptyDir"]["sizeLimit"] for volume in pod["volumes"] if "emptyDir" in volume}
    assert bytes_of(sizes[places["/dev/shm"]]) >= SMALLEST_SHARED_MEMORY
    assert "/tmp" in places
    limits = container["resources"]["limits"]
    assert sum(map(bytes_of, sizes.values())) < bytes_of(limits["memory"]) / 2
    assert container["resources"]["requests"] == limits, "else others may push the pod out"


@pytest.mark.parametrize("name", ON_ITS_OWN)
def test_one_autoscaler_scales_the_deployment_and_nothing_else_sets_its_replicas(render: Render, name: str) -> None:
    manifests = render(name)
    scalers = [manifest for manifest in manifests if manifest["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")]
    (scaler,) = scalers
    deployment = only(manifests, "Deployment")
    reference = scaler["spec"]["scaleTargetRef"]
    assert reference == {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment["metadata"]["name"]}
    assert "replicas" not in deployment["spec"]
    least = scaler["spec"].get("minReplicas") or scaler["spec"]["minReplicaCount"]
    assert least > only(manifests, "PodDisruptionBudget")["spec"]["maxUnavailable"]


def test_keda_asks_for_a_metric_of_ours_under_the_labels_that_the_scrape_gives(server: Server, render: Render) -> None:
    manifests = render("overlays/keda")
    (trigger,) = only(manifests, "ScaledObject")["spec"]["triggers"]
    metric, label, value = re.findall(r"(\w+)\{(\w+)=\"([^\"]+)\"\}", trigger["metadata"]["query"])[0]
    nothing = f"# TYPE {metric} gauge\n{metric} 0.0\n"  # once what another test has left is answered
    wait_until(lambda: nothing in server.get("/metrics").text, "no request in work")
    assert (label, value) == ("service", only(manifests, "Service")["metadata"]["name"])
    assert 0 < float(trigger["metadata"]["threshold"]) < settings_of(manifests).max_concurrency
    assert trigger["metricType"] == "AverageValue", "fallback works with no other"


@pytest.mark.parametrize("name", RENDERINGS)
def test_the_image_is_ours(render: Render, name: str) -> None:
    image, _, tag = container_of(render(name))["image"].partition(":")
    assert (image, tag) == (NAME, "gpu" if "gpu" in name else "latest")


@pytest.mark.parametrize("name", ["overlays/gpu", "base with gpu"])
def test_a_gpu_is_asked_for_and_used(render: Render, name: str) -> None:
    container = container_of(render(name))
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert settings_of(render(name)).device == "gpu"


def test_models_of_a_volume_are_read_only_and_where_serve_looks_for_them(render: Render) -> None:
    manifests = render("base with models-from-pvc")
    mounts = {mount["mountPath"]: mount for mount in container_of(manifests)["volumeMounts"]}
    (repository,) = settings_of(manifests).model_repositories
    assert mounts[str(repository)]["readOnly"] is True
    volume = next(volume for volume in pod_of(manifests)["volumes"] if volume["name"] == "models")
    assert volume["persistentVolumeClaim"]["readOnly"] is True


def test_the_inference_service_is_served_by_our_runtime(render: Render) -> None:
    manifests = render("kserve")
    model, runtime = (
        only(manifests, "InferenceService")["spec"]["predictor"]["model"],
        only(manifests, "ServingRuntime"),
    )
    assert model["runtime"] == runtime["metadata"]["name"]
    formats = [{key: entry[key] for key in ("name", "version")} for entry in runtime["spec"]["supportedModelFormats"]]
    assert model["modelFormat"] in formats
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    assert settings_of(manifests).model_repositories == (Path("/mnt/models"),), "where KServe puts storageUri"
    assert not environment_of(manifests).keys() & {"SAGEMAKER_MULTI_MODEL"}


def test_both_ways_run_the_same_container(render: Render) -> None:
    """But for the name, what differs by design, and how the port is named."""
    alone, kserve = container_of(render("base")), container_of(render("kserve"))
    for field in ("resources", "volumeMounts", "lifecycle", "image", "imagePullPolicy"):
        assert alone[field] == kserve[field]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert {**alone[probe], "httpGet": ""} == {**kserve[probe], "httpGet": ""}
    assert environment_of(render("base")).items() <= environment_of(render("kserve")).items()


def test_kserve_s_protocol_is_answered(server: Server) -> None:
    document = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.5]}]}
    reply = server.post("/v2/models/scale/infer", json=document)
    assert reply.json()["outputs"][0]["data"] == [3.0, 7.5]
    assert server.get("/v2/health/ready").status_code == 200


def test_a_restart_of_tritonserver_takes_the_pod_out_of_service_and_kills_nothing(
    server: Server, render: Render
) -> None:
    container, others = container_of(render("base")), [server.pid(name) for name in ("nginx", "gunicorn")]
    path = container["readinessProbe"]["httpGet"]["path"]
    with server.unattended():
        killed = server.pid("tritonserver")
        server.kill(killed)
        wait_until(lambda: server.get(path).status_code == 503, "the readiness probe sees it")
    server.wait_replaced("tritonserver", killed)
    wait_until(lambda: server.get(path).status_code == 200, "the readiness probe sees that it is back")
    assert [server.pid(name) for name in ("nginx", "gunicorn")] == others
    assert server.process.poll() is None


def test_the_page_names_every_place_and_component() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    assert not [name for name in [*PLACES, *COMPONENTS] if f"`{name}`" not in page]
