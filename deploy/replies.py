"""Formats the container's replies for a terminal."""

import json
from typing import Any

SHOWN = 6  # numbers of an embedding to print


def readable(body: bytes, content_type: str) -> str | None:
    """Text for a terminal; None for a reply that is not text."""
    if content_type.startswith("text/") or "jsonlines" in content_type:
        return body.decode(errors="replace").rstrip("\n")
    try:
        document = json.loads(body)
    except ValueError:
        return None
    if not isinstance(document, dict) or not isinstance(document.get("predictions"), list):
        return json.dumps(document, indent=2, ensure_ascii=False)
    lines = [f"{document.get('model_name', '?')} version {document.get('model_version', '?')}"]
    for index, prediction in enumerate(document["predictions"]):
        lines += [f"instance {index}", *(f"  {line}" for line in _prediction(prediction))]
    return "\n".join(lines)


def _prediction(value: Any) -> list[str]:
    """The lines for one prediction: formatted for the bundled clients' fields, otherwise as JSON."""
    for field, lines in (("detections", _detections), ("classes", _classes), ("embedding", _embedding)):
        if isinstance(value, dict) and isinstance(value.get(field), list):
            try:
                return lines(value)
            except (KeyError, TypeError, ValueError):
                break
    return json.dumps(value, ensure_ascii=False, indent=2).splitlines()


def _detections(value: dict[str, Any]) -> list[str]:
    found = value["detections"]
    lines = [f"{'label':<16} score   xmin    ymin    xmax    ymax"] if found else ["nothing detected"]
    for each in found:
        corners = " ".join(f"{each['box'][side]:7.1f}" for side in ("xmin", "ymin", "xmax", "ymax"))
        lines.append(f"{each['label']:<16} {each['score']:.3f} {corners}")
    return lines


def _classes(value: dict[str, Any]) -> list[str]:
    return [f"{each['label']:<16} {each['score']:.4f}" for each in value["classes"]]


def _embedding(value: dict[str, Any]) -> list[str]:
    numbers = value["embedding"]
    start = ", ".join(f"{number:.4f}" for number in numbers[:SHOWN])
    return [f"{len(numbers)} numbers: {start}{', …' if len(numbers) > SHOWN else ''}"]
