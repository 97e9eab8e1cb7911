"""What `kubectl kustomize` makes of the manifests in kubernetes/, for machines without kubectl: Debian's is too old to
know components, and no package registry has a newer one. It knows the fields that we use and refuses all others; where
there is a kubectl, test_kubernetes.py holds it against that.
"""

from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
KINDS = {"Kustomization", "Component"}
FIELDS = {"apiVersion", "kind", "resources", "components", "labels", "images", "patches"}
# By which field the items of a list are told apart when they are merged: x-kubernetes-patch-merge-key of the API.
MERGE_KEYS = {"containers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath"}


def render(folder: Path) -> list[Manifest]:
    """The manifests of that kustomization, in the order of kind and name."""
    return sorted(_applied(folder, []), key=lambda one: (one["kind"], one["metadata"]["name"]))


def _applied(folder: Path, manifests: list[Manifest]) -> list[Manifest]:
    """The manifests with what that folder adds and changes."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := (kustomization.keys() - FIELDS) or ({kustomization.get("kind", "Kustomization")} - KINDS):
        raise ValueError(f"{folder}/kustomization.yaml: {', '.join(unknown)}: not known here")
    for name in kustomization.get("resources", []):
        found = folder / name
        manifests = manifests + (render(found) if found.is_dir() else list(yaml.safe_load_all(found.read_text())))
    for name in kustomization.get("components", []):
        manifests = _applied((folder / name).resolve(), manifests)
    for patch in kustomization.get("patches", []):
        manifests = _patched(manifests, yaml.safe_load(patch.get("patch") or (folder / patch["path"]).read_text()))
    for image in kustomization.get("images", []):
        manifests = [_retagged(manifest, image["name"], image["newTag"]) for manifest in manifests]
    for labels in kustomization.get("labels", []):
        for manifest in manifests:
            manifest["metadata"]["labels"] = {**manifest["metadata"].get("labels", {}), **labels["pairs"]}
    return manifests


def _patched(manifests: list[Manifest], patch: Manifest) -> list[Manifest]:
    kept = []
    for manifest in manifests:
        if _identity(manifest) != _identity(patch):
            kept.append(manifest)
        elif patch.get("$patch") != "delete":
            kept.append(_merged(manifest, patch))
    return kept


def _identity(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _merged(old: Any, new: Any, field: str = "") -> Any:
    """Kubernetes' strategic merge."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merged(old.get(key), value, key) for key, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list) and field in MERGE_KEYS:
        key = MERGE_KEYS[field]
        ours = {item[key]: item for item in new}
        changed = [_merged(item, ours.pop(item[key])) if item[key] in ours else item for item in old]
        return [*ours.values(), *changed]
    return new


def _retagged(value: Any, image: str, tag: str) -> Any:
    if isinstance(value, dict):
        return {key: _retagged(inner, image, tag) for key, inner in value.items()}
    if isinstance(value, list):
        return [_retagged(inner, image, tag) for inner in value]
    is_it = isinstance(value, str) and value.partition(":")[0] == image and ":" in value
    return f"{image}:{tag}" if is_it else value
