"""Defines the inputs that fuzzing starts from: one valid body of every kind, and inputs that once
did harm."""

import gzip
import struct
import zlib

import numpy as np
from PIL import Image

from tests.support.harness import encoded, npy
from tests.support.hostile_images import (
    chunk,
    jpeg_of_scans,
    jpeg_with,
    png,
    run_length_bmp,
    tiff,
    turned,
)

JSON = b"application/json\n"
LINES = b"application/jsonlines\n"
BINARY = b"application/vnd.sagemaker-triton.binary+json;json-header-size="
TENSOR = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[0.5,-1e3]}]}'
HEADER = (
    b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}]}'
)
WORDS = (
    b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"BYTES",'
    b'"parameters":{"binary_data_size":10}}]}'
)
DEEP = b"[" * 1015 + b"]" * 1015  # the deepest nesting that orjson reads
CONFIG = b"""name: "m" platform: "onnxruntime_onnx" max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
parameters { key: "client" value { string_value: "resnet" } } dynamic_batching { }
"""
ENSEMBLE = (
    b'platform: "ensemble" ensemble_scheduling { step [ { model_name: "a" model_version: -1 } ] }'
)


def array(value: object, **options: str) -> bytes:
    return npy(np.array(value, **options))  # type: ignore[call-overload]


def npy_that_says(header: bytes) -> bytes:
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header


def part(name: str, content: bytes, more: str = '; filename="f"') -> bytes:
    return (
        f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode()
        + content
        + b"\r\n"
    )


PARAMETERS = {
    "made": b"",
    "number": b'{"sequence_id":7,"sequence_start":true,"sequence_end":false}',
    "harm-name": b'{"sequence_id":"%b","sequence_start":true}' % (b"x" * 128),
    "harm-cut": b'{"sequence_id":4294967301,"timeout":-1,"priority":"high"}',
    "harm-nul": b'{"sequence_id":"a\\u0000b","triton_other":1,"own":1e999}',
}
NOISE = Image.effect_noise((12, 9), 90)
SEEDS: dict[str, dict[str, bytes]] = {
    "body": {
        "tensor": JSON + TENSOR,
        "strings": JSON
        + b'{"inputs":[{"name":"x","shape":[2],"datatype":"BYTES","data":["a","\xc3\xa4"]}]}',
        "outputs": JSON
        + TENSOR[:-1]
        + b',"id":"7","outputs":[{"name":"x","parameters":{"binary_data":true}}]}',
        "instances": JSON
        + b'{"model_name":"m","instances":[1,"a",{"b64":"QQ=="}],"parameters":{"top_k":1}}',
        "sample": JSON + b'{"modelname":"m","payload":{"img":"QQ=="}}',
        "flat": JSON + b'{"x":[1,2],"y":3,"STREAM":false,"sequence_end":true}',
        "text": b"text/plain\nhello",
        "lines": LINES + b'{"instances":[1]}\n{}\n[1]\n' + TENSOR + b"\n",
        "binary": BINARY + b"%d\n" % len(HEADER) + HEADER + bytes(8),
        "raw": BINARY + b"0\n" + bytes(8),
        "npy": b"application/x-npy\n" + array([[1.0, 2.0]]),
        "harm-long-number": BINARY + b"9" * 5000 + b"\n{}",
        "harm-huge-shape": JSON
        + b'{"inputs":[{"name":"x","shape":[4294967296,4294967297],"datatype":"FP32","data":[]}]}',
        "harm-brackets": JSON + b'{"inputs":' + b"[" * 5000 + b"}",
        "harm-nested-stream": JSON + b'{"x":[[1,[2]]],"parameters":{"a":[[]]}}',
        "harm-deep-end": JSON + b'{"inputs":[],"sequence_end":' + DEEP + b"}",
        "harm-deep-id": JSON + b'{"x":[1],"id":' + DEEP + b"}",
        "harm-deep-shape": JSON
        + b'{"inputs":[{"name":"x","shape":'
        + DEEP
        + b',"datatype":"FP32","data":[1]}]}',
        "harm-no-rows": JSON
        + b'{"inputs":[{"name":"x","shape":[0,0],"datatype":"BYTES","data":[]}]}',
        "harm-sequence-id": JSON
        + TENSOR[:-1]
        + b',"parameters":{"sequence_id":"%b"}}' % (b"a" * 200),
        "harm-surrogate-npy": b"application/x-npy\n"
        + npy_that_says(b"{'descr': '<U1', 'fortran_order': False, 'shape': (1, 1), }\n")
        + b"\x00\xd8\x00\x00",
        "harm-lines": LINES + b"{}\n" * 8,
        "harm-surrogate": JSON + b'{"x":"\\ud800","model_name":"\\udfff"}',
        "harm-npz": b"application/x-npy\nPK\x03\x04" + bytes(30),
        "harm-empty-strings": b"application/x-npy\n"
        + npy_that_says(b"{'descr': '|S0', 'fortran_order': False, 'shape': (1, 30000000), }\n"),
    },
    "binary": {
        "numbers": b"%d\n" % len(HEADER) + HEADER + bytes(8),
        "strings": b"%d\n" % len(WORDS) + WORDS + b"\1\0\0\0a\1\0\0\0b",
        "harm-string-length": b"%d\n" % len(WORDS) + WORDS + b"\xff\xff\xff\xffabcdef",
        "harm-negative": b"-1\n{}",
    },
    "parameters": {
        f"{name}-{kind}": b"k" * kind + b"\n" + content
        for name, content in PARAMETERS.items()
        for kind in range(18)
    },
    "packed": {
        "gzip": b"gzip\n" + gzip.compress(b"hello" * 9, mtime=0),
        "deflate": b"deflate\n" + zlib.compress(b"hello" * 9),
        "harm-bomb": b"gzip\n" + gzip.compress(bytes(2**22), mtime=0),
        "harm-members": b"gzip\n" + gzip.compress(b"", mtime=0) * 500,
    },
    "npy": {
        "floats": array([[1.5, 2.5]]),
        "strings": array(["a", "bc"]),
        "half": array([1, 2], dtype="<f2"),
        "harm-empty-strings": npy_that_says(
            b"{'descr': '|S0', 'fortran_order': False, 'shape': (1, 30000000), }\n"
        ),
        "harm-empty-and-huge": npy_that_says(
            b"{'descr': '<f8', 'fortran_order': False, 'shape': (0, 1%b), }\n" % (b"0" * 20)
        ),
        "harm-true": npy_that_says(
            b"{'descr': '|u1', 'fortran_order': False, 'shape': (True,), }\n"
        )
        + b"\1",
        "harm-huge": npy_that_says(
            b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n"
        ),
        "harm-pickle": npy_that_says(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n")
        + b"\x80\x04N.",
    },
    "headers": {
        "attributes": b"model_name=m;model_version=1,top_k=2\n12345",
        "session": b"sequence_end=true\nNEW_SESSION",
        "expires": b"\n77; Expires=2026-01-01T00:00:00Z",
        "harm-digits": b"model_version=" + b"9" * 5000 + b"\n" + b"9" * 5000,
    },
    "form": {
        "file": b"\n\n\n" + part("image", b"GIF89a") + part("top_k", b"2", "") + b"--b--\r\n",
        "query": b"m\nmodel_name=m&top_k=1&model_version=%zz\n" + JSON + TENSOR,
        "harm-parts": b"\n\n\n" + part("a", b"", "") * 60 + b"--b--\r\n",
        "harm-no-end": b"\n\n\n--b\r\n"
        b"Content-Disposition: form-data; name*=utf-8''%ff; filename=\r\n\r\n",
    },
    "api": {
        "embeddings": b'/v1/embeddings\n{"input":["a","b"],"model":"m","encoding_format":"base64"}',
        "documents": b'/v2/rerank\n{"query":"a","documents":["a",{"text":"b"}],"top_n":1}',
        "texts": b'/rerank\n{"query":"a","texts":["a","b"],"raw_scores":true,"return_text":true}',
        "embed": b'/embed\n{"inputs":["a","b"],"truncate":false,"normalize":true}',
        "predict": b'/predict\n{"inputs":[["a"],["a","b"]],"raw_scores":true}',
        "similarity": b'/similarity\n{"inputs":{"source_sentence":"a","sentences":["a","b"]}}',
        "pipeline": b'/pipeline\n{"inputs":["a"],"parameters":{"threshold":0.5,"top_k":2}}',
        "raw": b"/pipeline\n12",
        "harm-ids": b'/v1/embeddings\n{"input":[[1,2],[3]],"dimensions":2147483648}',
    },
    "bare": {
        "rows": b"[[1.5,2],[3,4]]",
        "cells": b"[1,2]",
        "text": b'"aGVsbG8="',
        "named": b'{"inputs":{"x":[[1.0]]}}',
        "split": b'{"dataframe_split":{"columns":["a","b"],"data":[[1,2]],"index":[0]}}',
        "records": b'{"dataframe_records":[{"a":1}],"parameters":{"flag":true}}',
        "libsvm": b"1 0:1.5 1:2 # a comment\n0:3\n",
        "harm-index": b"1 2147483648:1\n1 99999999999999999999:1\n",
        "harm-deep": b"[" * 40 + b"1" + b"]" * 40,
        "harm-ragged": b"[[1],[2,3],[]]",
    },
    "config": {
        "onnx": CONFIG,
        "ensemble": ENSEMBLE,
        "harm-nested": b"ensemble_scheduling { step { input_map { key: '' value: '\\377' } } }" * 3,
    },
    "archive": {
        "one": b"/1/model\n" + CONFIG,
        "ensemble": b"/1/model\n" + CONFIG + b"\n\n" + ENSEMBLE,
        "harm-up": b"/1/model/../../../proc/self\n",
        "harm-null": b"/1/model\0\n",
    },
    "image": {
        **{
            format.lower(): encoded(NOISE.convert("RGB"), format, exif=turned())
            for format in ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF")
        },
        **{
            f"tiff-{kind}": encoded(
                NOISE.convert("1" if kind == "group4" else "RGB"), "TIFF", compression=kind
            )
            for kind in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits", "group4")
        },
        **{
            f"png-{mode.lower().replace(';', '')}": encoded(NOISE.convert(mode), "PNG")
            for mode in ("1", "L", "LA", "P", "RGBA", "I;16")
        },
        "jpeg-progressive": encoded(NOISE, "JPEG", progressive=True),
        "jpeg-cmyk": encoded(NOISE.convert("CMYK"), "JPEG"),
        "webp-lossless": encoded(NOISE.convert("RGBA"), "WEBP", lossless=True),
        # 9,400 × 9,400 pixels
        "harm-webp": bytes.fromhex(
            "524946461a000000574542505650384c0d0000002fb7e42d19071011118888fe0700"
        ),
        "harm-palette": png(3, 400, chunk(b"PLTE", bytes(6)) + chunk(b"tRNS", b"\0\xff"), side=400),
        "harm-rle": run_length_bmp()[:8000],
        "harm-scans": jpeg_of_scans(20),
        "harm-exif": jpeg_with(b"\xff\xe1\0\x09Exif\0\0X" * 300),
        "harm-tile": tiff(
            [
                (256, 4, 1, 16),
                (257, 4, 1, 16),
                (258, 3, 1, 8),
                (259, 3, 1, 8),
                (262, 3, 1, 1),
                (277, 3, 1, 1),
                (322, 4, 1, 2**15),
                (323, 4, 1, 2**15),
                (324, 4, 1, 134),
                (325, 4, 1, 99),
            ]
        ),
        "harm-directories": tiff(
            [(256, 3, 1, 8), (257, 3, 1, 8), (258, 3, 1, 8), (262, 3, 1, 1), (273, 4, 1, 8)],
            directories=100,
        ),
    },
}
