"""JSON Schemas that predictions of several clients have."""

from typing import Any

Schema = dict[str, Any]
STRING, NUMBER, INTEGER, BOOLEAN = ({"type": name} for name in ("string", "number", "integer", "boolean"))


def record(**fields: Schema) -> Schema:
    """An object with these fields."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def listed(items: Schema) -> Schema:
    return {"type": "array", "items": items}


CLASSES = listed(record(label=STRING, class_id=INTEGER, score=NUMBER))
