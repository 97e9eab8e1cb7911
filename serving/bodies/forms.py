"""Texts and forms: what they hold depends on the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from clients.base import ModelClient
from serving.bodies.instances import Instances
from serving.bodies.tables import CsvBody
from serving.codecs import ROW
from serving.decoding import Item
from serving.errors import InvalidRequest
from serving.headers import JSON_TYPE
from serving.model_status.served_model import ServedModel
from serving.request import UNNAMED, Job, Request, Target

TEXT = "text/plain"
URL_ENCODED = "application/x-www-form-urlencoded"  # a form, or what curl says of any body
MOST_FIELDS = 32  # of a URL-encoded form


@dataclass(frozen=True)
class TextOrForm:
    """A text or a form; which one, and of what, the model decides:

    - a table: CSV, unless it is JSON; a form has it as its only file
    - texts: a text, or each file of a form
    - any model: a form whose fields are the keys of an instance, such as `text`; the other fields are parameters
    """

    items: list[Item]
    media_type: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    named: Target = UNNAMED

    def bind(self, served: ServedModel, request: Request) -> Job:
        return self._shape(served.require_client()).bind(served, request)

    def _shape(self, client: ModelClient) -> Instances | CsvBody:
        if instance := self._instance(client):
            rest = {key: value for key, value in self.parameters.items() if key not in instance}
            return Instances([Item("form", value=instance)], rest, named=self.named)
        if not self.items:
            fields = f", or the fields {', '.join(keys)}" if (keys := _keys(client)) else ""
            raise InvalidRequest(f"the form has no file; send one or more (curl -F image=@picture.jpg){fields}")
        if client.codec is ROW and self.media_type != URL_ENCODED:
            return self._table()
        takes_text = TEXT in client.codec.media_types and self.media_type != URL_ENCODED
        return self._instances(TEXT if takes_text else self.media_type)

    def _instance(self, client: ModelClient) -> dict[str, Any]:
        """Return the instance that the fields of a form without files make; empty if they make none."""
        keys, fields = _keys(client), self.parameters
        if self.media_type == URL_ENCODED:
            raw = self.items[0].raw or b""
            is_form = raw.startswith(tuple(f"{key}=".encode() for key in keys)) and raw.count(b"&") < MOST_FIELDS
            fields = dict(parse_qsl(raw.decode(errors="replace"))) if is_form else {}
        elif self.items:
            return {}
        return {key: value for key, value in fields.items() if key in keys}

    def _table(self) -> Instances | CsvBody:
        if len(self.items) > 1:
            raise InvalidRequest(f"the form has {len(self.items)} files; send one of CSV, a line for each row")
        raw = self.items[0].raw or b""
        if raw.lstrip()[:1] in (b"[", b"{"):
            return self._instances(JSON_TYPE)
        return CsvBody(raw, parameters=self.parameters)

    def _instances(self, media_type: str) -> Instances:
        return Instances(self.items, self.parameters, media_type=media_type, named=self.named)


def _keys(client: ModelClient) -> Sequence[str]:
    """Return the keys of an instance that is an object; none if any key is taken, as a table's columns are."""
    return client.keys or client.codec.keys or ()
