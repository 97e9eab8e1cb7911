"""Instances of more than one text: objects with known keys."""

from collections.abc import Mapping
from typing import Any

import orjson

from serving.budget import read_json
from serving.codecs import Codec, Limits, describe
from serving.errors import DecodingError
from serving.named_value import unknown


class Fields(Codec):
    """An object with strings under the `required` and `optional` keys, and lists of strings under those in `lists`. If
    only "text" is required, the instance may also be a string."""

    name = "text"
    media_types = ("text/plain",)

    def __init__(self, *required: str, optional: tuple[str, ...] = (), lists: tuple[str, ...] = ()) -> None:
        self.required, self.lists = required, lists
        self.keys: tuple[str, ...] = (*required, *optional)
        self.plain = required == ("text",)
        shown = ", ".join(f'"{key}": ["…"]' if key in lists else f'"{key}": "…"' for key in self.keys)
        self.expected = f"{{{shown}}}" if not self.plain else f"a string, or {{{shown}}}"

    def open(self, data: bytes, limits: Limits) -> Any:
        """Return a text, or the object if the bytes are JSON of one or if a text is not enough."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as err:
            raise DecodingError(f"the text is not UTF-8 (byte {err.start})") from err
        value = _object(data)
        if self.plain and not (value.keys() and value.keys() <= set(self.keys) and "text" in value):
            return text
        return self.open_json(value, limits)

    def open_json(self, value: Any, limits: Limits) -> Any:
        """Return a string, or a dict with the known keys that the value has."""
        if self.plain and isinstance(value, str):
            return value
        if not isinstance(value, dict) or not set(self.required) <= value.keys():
            raise DecodingError(f"expected {self.expected}, got {describe(value)}")
        if strange := sorted(value.keys() - set(self.keys)):
            raise DecodingError(unknown("key", strange[0], self.keys))
        for key, given in value.items():
            self._check(key, given)
        return value["text"] if self.plain and len(value) == 1 else dict(value)

    def _check(self, key: str, value: Any) -> None:
        if key in self.lists:
            if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
                raise DecodingError(f"expected a list of at least one string, got {describe(value)}", field=key)
        elif not isinstance(value, str):
            raise DecodingError(f"expected a string, got {describe(value)}", field=key)


def _object(data: bytes) -> dict[str, Any]:
    """Return the JSON object of these bytes, an empty one if they are not an object."""
    if not data.lstrip().startswith(b"{"):
        return {}
    try:
        value = read_json(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def as_text(instance: str | Mapping[str, str]) -> str | tuple[str, str]:
    """Return a text, or the pair of a text and its `text_pair`."""
    if isinstance(instance, str):
        return instance
    return (instance["text"], instance["text_pair"]) if "text_pair" in instance else instance["text"]
