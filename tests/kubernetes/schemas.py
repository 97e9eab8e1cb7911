"""What a Kubernetes API server would say of a manifest, offline: unknown fields are refused as well as wrong types.

Kubernetes' own kinds are held against the schemas that kubernetes-validate carries, KEDA's and the Prometheus
operator's against the models that cloudcoil generates from their definitions. No package that can be installed here
carries KServe's, so KSERVE below is written by hand after its API reference and its Python SDK 0.21
(https://kserve.github.io/website/docs/reference/crd-api), for the fields that kubernetes/kserve uses; what is
Kubernetes' own in them (containers, volumes) is checked as a Pod's.
"""

from collections.abc import Mapping
from typing import Any

import jsonschema
import kubernetes_validate
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor

Manifest = dict[str, Any]

VERSIONS = ("1.27", kubernetes_validate.latest_version())
GENERATED = {"ScaledObject": ScaledObject, "ServiceMonitor": ServiceMonitor}


def _object(required: Mapping[str, Any], **optional: Any) -> Manifest:
    properties = {**required, **optional}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_TEXT, _NUMBER, _FLAG, _ANY = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"type": "object"}
_METADATA = _object({"name": _TEXT}, labels=_ANY, annotations={"additionalProperties": _TEXT}, namespace=_TEXT)


def _kind(version: str, kind: str, spec: Manifest) -> Manifest:
    return _object({"apiVersion": {"const": version}, "kind": {"const": kind}, "metadata": _METADATA, "spec": spec})


KSERVE = {
    "ServingRuntime": _kind(
        "serving.kserve.io/v1alpha1",
        "ServingRuntime",
        _object(
            {"containers": {"type": "array", "minItems": 1}},
            supportedModelFormats={
                "type": "array",
                "items": _object({"name": _TEXT}, version=_TEXT, autoSelect=_FLAG, priority=_NUMBER),
            },
            protocolVersions={"type": "array", "items": {"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]}},
            volumes={"type": "array"},
        ),
    ),
    "InferenceService": _kind(
        "serving.kserve.io/v1beta1",
        "InferenceService",
        _object(
            {
                "predictor": _object(
                    {
                        "model": _object(
                            {"modelFormat": _object({"name": _TEXT}, version=_TEXT)},
                            runtime=_TEXT,
                            protocolVersion={"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]},
                            storageUri=_TEXT,
                        )
                    },
                    minReplicas=_NUMBER,
                    maxReplicas=_NUMBER,
                    scaleMetric={"enum": ["cpu", "memory", "concurrency", "rps"]},
                    scaleTarget=_NUMBER,
                    timeout=_NUMBER,
                    automountServiceAccountToken=_FLAG,
                    terminationGracePeriodSeconds=_NUMBER,
                )
            }
        ),
    ),
}


def check(manifest: Manifest) -> None:
    """Raises an error that names the field."""
    kind = manifest["kind"]
    if model := GENERATED.get(kind):
        read = model.model_validate(manifest).model_dump(mode="json", by_alias=True, exclude_unset=True)
        if read != manifest:
            raise ValueError(f"{kind}: of {manifest} only {read} is known")
    elif schema := KSERVE.get(kind):
        jsonschema.validate(manifest, schema)
        for version in VERSIONS if kind == "ServingRuntime" else ():
            kubernetes_validate.validate(_pod(manifest), version, strict=True)
    else:
        for version in VERSIONS:
            kubernetes_validate.validate(manifest, version, strict=True)


def _pod(runtime: Manifest) -> Manifest:
    spec = {key: runtime["spec"][key] for key in ("containers", "volumes") if key in runtime["spec"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
