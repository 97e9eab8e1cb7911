"""What nginx's door takes of changed bodies is what Flask reads of them: no two parsers decide."""

import json
import re
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clients.base import Model
from serving.bodies.reading import read_binary
from serving.codecs import Limits
from serving.decoding import Decoder
from serving.request import Request
from serving.served_model import ServedModel
from tests.supervisor.test_door import SIZED, SMALL, body, edge, send
from tests.supervisor.test_nginx_conf import Edge

__all__ = ["edge"]  # the fixture
REQUESTS = 200
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"\[\]{}:,]+|[\[\]{}:,]')
SERVED = ServedModel(Model("scale", Path("scale"), (), (), 0))
DECODER = Decoder(Limits(1))
DATA = np.arange(16, dtype=np.uint8).tobytes()
WHOLE = {"name": "w", "shape": [2, 2], "datatype": "INT64", "data": [[1, 2], [3, 4]]}
BODIES = [
    (body(SMALL, WHOLE, id="one", outputs=[{"name": "y", "parameters": {"binary_data": False}}]), b""),
    (body(SIZED, parameters={"binary_data_output": True}), DATA),
    (body(SIZED, WHOLE, {**SIZED, "name": "z", "datatype": "UINT8", "shape": [4, 4]}), DATA + DATA),
]


def words(text: str) -> list[str]:
    return text.split()


NUMBERS = words("0 1 2 3 4 -1 16 0.5 1e308 1e999 01 NaN 0x10 3.5e38 127 128 255 -129 65536 2147483648 " + "1" * 400)
NUMBERS += words("9007199254740991 9007199254740992")  # 1.0 is whole to the door, and no INT64 to Flask
WORDS = words(
    "name shape datatype data parameters inputs outputs id sh\\u0061pe a\\u0000b é binary_data_size binary_data"
)
WORDS += words("FP32 FP64 INT8 INT32 INT64 UINT8 UINT64 BOOL BYTES")
OTHERS = [*words(r'[ ] { } , : [] {} null true [1,2] \ "'), "\0", " "]
MEMBERS = words(r""""shape":[4,1] "shape":[2,2] "sh\u0061pe":[4] "datatype":"INT64" "data":[5,6,7,8] "id":"two"
    "name":"v" "parameters":{"binary_data_size":16} "parameters":{} "x":1 "inputs":[]""")
EDITS = st.lists(st.tuples(st.integers(0, 199), st.integers(0, 99), st.booleans()), max_size=2)


def changed(text: str, edits: list[tuple[int, int, bool]]) -> bytes:
    """With other numbers instead of numbers and so on, and with more members, perhaps a second time."""
    tokens = TOKEN.findall(text)
    for place, choice, is_member in edits:
        at = place % len(tokens)
        if is_member:
            at = [number for number, token in enumerate(tokens) if token == "{"][place % tokens.count("{")] + 1
            tokens.insert(at, f"{MEMBERS[choice % len(MEMBERS)]},")
        else:
            pool = WORDS if tokens[at].startswith('"') else OTHERS if tokens[at] in "[]{}:," else NUMBERS
            word = pool[choice % len(pool)]
            tokens[at] = f'"{word}"' if pool is WORDS else word
    return "".join(tokens).encode()


def test_the_door_and_flask_read_the_same(edge: Edge) -> None:
    taken = set()

    @settings(
        max_examples=REQUESTS, derandomize=True, deadline=None, database=None, suppress_health_check=[*HealthCheck]
    )
    @given(given=st.sampled_from(BODIES), edits=EDITS, is_sized=st.booleans())
    def one(given: tuple[object, bytes], edits: list[tuple[int, int, bool]], is_sized: bool) -> None:
        head, data = changed(json.dumps(given[0]), edits), given[1]
        length = {"Inference_Header_Content_Length": str(len(head))} if data or is_sized else {}
        got = send(edge, head + data, "/v2/models/scale/infer", **length)
        if got.program == "Triton":
            taken.add(head)
            document, sent = got.tensors()
            read = read_binary(str(len(head)), "the header", head + data, is_kserve=True)
            [batch] = read.batches(SERVED, Request("id", read), None, DECODER)
            assert document["inputs"] == [
                {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
                | {"parameters": {"binary_data_size": len(tensor.data)}}
                for tensor in batch.inputs
            ]
            assert sent == b"".join(tensor.data for tensor in batch.inputs)
            assert [output["name"] for output in document.get("outputs", [])] == list(batch.outputs)

    one()
    assert len(taken) > REQUESTS / 20
