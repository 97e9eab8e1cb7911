"""Tests that the manifests in kubernetes/ are valid, and consistent with what `serve` does."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

from serving.settings.settings import Settings
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

VERSIONS = ("1.27", kubernetes_validate.latest_version())
DEPLOYMENT, SERVICE = yaml.safe_load_all((ROOT / "kubernetes/deployment.yaml").read_text())
RUNTIME = yaml.safe_load((ROOT / "kubernetes/servingruntime.yaml").read_text())
PODS = {"Deployment": DEPLOYMENT["spec"]["template"]["spec"], "ServingRuntime": RUNTIME["spec"]}
# Fields of KServe's ServingRuntimeSpec and SupportedModelFormat (API reference of KServe 0.15), for
# which no validator is available here. The containers and volumes in them are those of Kubernetes.
RUNTIME_FIELDS = {
    "supportedModelFormats",
    "multiModel",
    "protocolVersions",
    "containers",
    "volumes",
}
RUNTIME_FIELDS |= {
    "nodeSelector",
    "affinity",
    "tolerations",
    "labels",
    "annotations",
    "imagePullSecrets",
}
FORMAT_FIELDS = {"name", "version", "autoSelect", "priority"}
UNITS = {"Mi": 2**20, "Gi": 2**30}


def container(kind: str) -> dict[str, Any]:
    (spec,) = PODS[kind]["containers"]
    return dict(spec)


def settings(kind: str) -> Settings:
    return Settings.from_env(
        {variable["name"]: variable["value"] for variable in container(kind)["env"]}
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_validate_the_deployment_and_the_service(version: str) -> None:
    for manifest in (DEPLOYMENT, SERVICE):
        kubernetes_validate.validate(manifest, version, strict=True)
    assert SERVICE["spec"]["selector"] == DEPLOYMENT["spec"]["selector"]["matchLabels"]
    assert (
        SERVICE["spec"]["selector"].items()
        <= DEPLOYMENT["spec"]["template"]["metadata"]["labels"].items()
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_validate_the_serving_runtime(version: str) -> None:
    spec = RUNTIME["spec"]
    assert (RUNTIME["apiVersion"], RUNTIME["kind"]) == (
        "serving.kserve.io/v1alpha1",
        "ServingRuntime",
    )
    assert spec.keys() <= RUNTIME_FIELDS
    assert all(each.keys() <= FORMAT_FIELDS for each in spec["supportedModelFormats"])
    assert {*spec["protocolVersions"]} <= {"v1", "v2", "grpc-v1", "grpc-v2"}
    pod = {"containers": spec["containers"], "volumes": spec["volumes"]}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod}
    kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("kind", PODS)
def test_outlast_the_settings_with_probes_and_grace_period(kind: str) -> None:
    spec, set_to = container(kind), settings(kind)
    startup = spec["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > set_to.start_timeout
    pause = int(spec["lifecycle"]["preStop"]["exec"]["command"][1])
    assert PODS[kind].get("terminationGracePeriodSeconds", 40) > pause + set_to.stop_timeout
    (port,) = spec["ports"]
    assert port["containerPort"] == 8080
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert spec[probe]["httpGet"]["path"] == "/ping"
        assert spec[probe]["httpGet"]["port"] in (port["name"], port["containerPort"])


@pytest.mark.parametrize("kind", PODS)
def test_satisfy_the_restricted_pod_security_standard(kind: str) -> None:
    spec = container(kind)
    context = {**PODS[kind].get("securityContext", {}), **spec["securityContext"]}
    assert context["runAsNonRoot"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("kind", PODS)
def test_fit_memory_volumes_into_the_memory_limit(kind: str) -> None:
    mounted = {mount["name"]: mount["mountPath"] for mount in container(kind)["volumeMounts"]}
    sizes = {
        mounted[volume["name"]]: volume["emptyDir"]["sizeLimit"] for volume in PODS[kind]["volumes"]
    }
    assert {"/tmp", "/dev/shm"} <= sizes.keys()
    in_bytes = [int(size[:-2]) * UNITS[size[-2:]] for size in sizes.values()]
    limit = container(kind)["resources"]["limits"]["memory"]
    assert sum(in_bytes) < int(limit[:-2]) * UNITS[limit[-2:]] / 2
