"""Reads texts and forms, whose meaning depends on the model."""

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl

from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import MultiPartParser

from clients.base import ModelClient
from serving.bodies.csv_body import CsvBody
from serving.bodies.decoder import Item
from serving.bodies.instances import Instances
from serving.budget import MOST_FIELD, MOST_HEADERS, MOST_PARTS
from serving.codecs import FORM, ROW
from serving.errors import InvalidRequest, PayloadTooLarge
from serving.headers import JSON_TYPE
from serving.job import Job
from serving.model_status.served_model import ServedModel
from serving.request import RESERVED, UNNAMED, Request, Target
from serving.request_memory import FILES, form_memory, reserve

TEXT = "text/plain"
URL_ENCODED = "application/x-www-form-urlencoded"  # what curl sends by default, whatever the body
MOST_FIELDS = 32  # fields in a URL-encoded form
FIRST_KEY = re.compile(rb"\w{1,64}=")  # the beginning of a URL-encoded form


@dataclass(frozen=True)
class TextOrForm:
    """A text or a form, whose meaning depends on the model:

    - For a model of tables, it is CSV or JSON, or a form whose only file is CSV or JSON.
    - For any other model, it is one instance, or a form with an instance in each file.
    - If the client allows only certain keys in an instance, it can also be a form whose fields are
      such keys, for example `text`, and parameters.
    """

    items: list[Item]
    media_type: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    named: Target = UNNAMED

    def bind(self, served: ServedModel, request: Request) -> Job:
        return self._body_for(served.require_client()).bind(served, request)

    def _body_for(self, client: ModelClient) -> Instances | CsvBody:
        """Return the text or form as the kind of body that the client expects. Raise InvalidRequest
        if a form has neither a file nor a field that is a key of an instance, or if it has several
        files although the client accepts rows."""
        keys = client.instance_keys()
        values = self._fields(client)
        instance = {key: value for key, value in values.items() if key in keys}
        if instance:
            not_parameters = {*keys, *RESERVED}
            parameters = {key: value for key, value in values.items() if key not in not_parameters}
            return Instances([Item("form", value=instance)], parameters, named=self.named)
        if not self.items:
            or_fields = f", or the fields {', '.join(keys)}" if keys else ""
            raise InvalidRequest(
                f"the form has no file; send one or more (curl -F image=@picture.jpg){or_fields}"
            )
        if self.media_type == URL_ENCODED:  # not meaningful: curl declares any body like this
            return self._instances(URL_ENCODED)
        if client.codec is ROW:
            return self._table()
        if TEXT in client.codec.media_types:
            return self._instances(TEXT)
        return self._instances(self.media_type)

    def _fields(self, client: ModelClient) -> Mapping[str, Any]:
        """Return the fields of a form without files, or {} for any other body."""
        if self.media_type != URL_ENCODED:
            has_files = bool(self.items)
            return {} if has_files else self.parameters
        data = self.items[0].raw or b""
        keys = (*client.instance_keys(), *RESERVED)
        beginnings = tuple(f"{key}=".encode() for key in keys)
        # The body counts as a form only if it begins with a known key, because curl declares any
        # body to be a form.
        return _parse_fields(data) if data.startswith(beginnings) else {}

    def _table(self) -> Instances | CsvBody:
        """Return the only text or file as one row if it is JSON, or else as a table in CSV. Raise
        InvalidRequest if there are several files."""
        if len(self.items) > 1:
            raise InvalidRequest(
                f"the form has {len(self.items)} files; send one of CSV, a line for each row"
            )
        raw = self.items[0].raw or b""
        if raw.lstrip()[:1] in (b"[", b"{"):
            return self._instances(JSON_TYPE)
        return CsvBody(raw, parameters=self.parameters, can_be_lines=False)

    def _instances(self, media_type: str) -> Instances:
        return Instances(self.items, self.parameters, media_type=media_type, named=self.named)


END_OF_HEADERS = re.compile(rb"\r\n\r\n|\n\n|\r\r")


def _check_headers(data: bytes, boundary: str) -> None:
    """Raise PayloadTooLarge if a part of a form has more than MOST_HEADERS bytes of headers,
    because werkzeug takes 40 times as much memory to parse them."""
    separator = f"--{boundary}".encode(errors="replace")
    starts = (match.end() for match in re.finditer(re.escape(separator), data))
    for start in islice(starts, MOST_PARTS + 1):  # werkzeug refuses a form with more parts
        within = data[start : start + MOST_HEADERS]
        ends_the_form = within.startswith(b"--")
        may_be_too_long = len(within) == MOST_HEADERS and not ends_the_form
        if may_be_too_long and not END_OF_HEADERS.search(within):
            raise PayloadTooLarge(
                f"a part of the form has more than {MOST_HEADERS} bytes of headers: send the "
                "values in the body of the part"
            )


def _parse_fields(data: bytes) -> dict[str, str]:
    """Parse a URL-encoded form. Return {} if it has more than MOST_FIELDS fields."""
    if data.count(b"&") >= MOST_FIELDS:
        return {}
    with reserve(form_memory(data), "the form"):
        return dict(parse_qsl(data.decode(errors="replace"), keep_blank_values=True))


def named_in_form(data: bytes) -> Target:
    """Return the model and the version that a body names if it is a URL-encoded form, or else an
    empty Target. Raise InvalidRequest if the form names two different models."""
    fields = _parse_fields(data) if FIRST_KEY.match(data) else {}
    return Target.within("the form", fields)


def read_form(data: bytes, boundary: str) -> TextOrForm:
    """Parse a multipart form, whose parts are separated by `boundary`. Each file is an instance. A
    field names the model or its version, is a parameter, or is a key of an instance. Raise a
    ServingError if the form is invalid or takes too much memory."""
    reserve(FILES * len(data), "the form")
    _check_headers(data, boundary)
    parser = MultiPartParser(
        stream_factory=lambda *_, **__: io.BytesIO(),  # by default, large files go to the disk
        max_form_parts=MOST_PARTS,
        max_form_memory_size=MOST_FIELD,
    )
    try:
        separator = boundary.encode("ascii")
        fields, files = parser.parse(io.BytesIO(data), separator, len(data))
    except RequestEntityTooLarge as err:
        raise PayloadTooLarge(
            f"the form has more than {MOST_PARTS} files and fields, or a field of more than "
            f"{MOST_FIELD} bytes: send fewer at a time, and a large one as a file"
        ) from err
    except ValueError as err:
        raise InvalidRequest(
            f"the body is not a complete form with the boundary '{boundary}' of its "
            f"Content-Type ({err}): `curl -F` and HTTP libraries write both"
        ) from err
    for name, values in fields.lists():
        if len(values) > 1:
            raise InvalidRequest(f"the form has the field '{str(name)[:100]}' twice; send it once")
    # werkzeug returns the name None for a part without a name
    items = [Item(str(name), raw=file.read()) for name, file in files.items(multi=True)]
    parameters = {str(name): value for name, value in fields.items() if name not in RESERVED}
    return TextOrForm(items, FORM, parameters, Target.within("the form", fields))
