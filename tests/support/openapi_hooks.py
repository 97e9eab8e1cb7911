"""Defines hooks for schemathesis: integers are sent without a decimal point, because JSON Schema
accepts 1.0 as an integer and Triton does not."""

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(_context: object, body: Any) -> Any:
    """Return the body with integers in place of whole floats."""
    if isinstance(body, dict):
        return {key: map_body(None, value) for key, value in body.items()}
    if isinstance(body, list):
        return [map_body(None, value) for value in body]
    if isinstance(body, float) and body.is_integer():
        return int(body)
    return body
