"""Runs an S3 server over HTTP: moto's, behind a proxy that counts requests and can cause faults."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

from tests.support.harness import PATIENCE

SECRET = "a-secret-that-nobody-may-log"
KEY = "AKIAEXAMPLEEXAMPLE00"
BUCKET = "models"
AZURE_BLOB = (
    "<Blob><Name>{Key}</Name><Properties><Content-Length>{Size}</Content-Length>"
    "<Content-Type>text/plain</Content-Type><Etag>{ETag}</Etag>"
    "<Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified></Properties></Blob>"
)


class Exchange(BaseHTTPRequestHandler):
    """A request. The server's `fault` answers it and returns True, or returns False, so that moto
    answers it."""

    protocol_version = "HTTP/1.1"
    server: "ObjectStore"

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        if not self.server.fault(self):
            self.forward()

    do_HEAD = do_GET

    def forward(self, share: float = 1.0, without: str = "") -> None:
        """Send moto's reply, or only the first part of its body. Leave out the header `without`."""
        host, port = self.server.moto.get_host_and_port()
        moto = HTTPConnection(host, port, timeout=PATIENCE)
        moto.request(self.command, self.path, headers=dict(self.headers))
        reply = moto.getresponse()
        body = reply.read()
        moto.close()
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in ("connection", "date", "server", "transfer-encoding", without):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: int(share * len(body))])
        self.close_connection = share < 1

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def is_object(self) -> bool:
        """Return whether the content of an object is requested."""
        return self.command == "GET" and "list-type" not in self.path

    def log_message(self, *_: Any) -> None: ...


class ObjectStore(ThreadingHTTPServer):
    """The proxy. `requests` are the requests that it got, and `environment` contains the variables
    with which a client finds it. `released` ends the fault `hang`."""

    daemon_threads = True

    def __init__(self) -> None:
        self.moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self.moto.start()
        super().__init__(("127.0.0.1", 0), Exchange)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[str] = []
        self.released = threading.Event()
        self.fault: Callable[[Exchange], bool] = lambda _: False
        host, port = self.moto.get_host_and_port()
        self.client: Any = boto3.client(
            "s3",
            region_name="us-east-1",
            endpoint_url=f"http://{host}:{port}",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )
        self.client.create_bucket(Bucket=BUCKET)
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def put(self, key: str, content: bytes = b"") -> None:
        """Put an object that may be read without credentials."""
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content, ACL="public-read")

    def put_quickly(self, key: str) -> None:
        """Put an empty object without a request."""
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(BUCKET, key, b"")

    def empty(self) -> None:
        """Remove all objects and faults, and forget the requests."""
        self.fault = lambda _: False
        self.released.clear()
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[BUCKET].keys.clear()
        self.requests.clear()

    def gets(self) -> list[str]:
        """Return the requests for the content of objects."""
        return [
            line for line in self.requests if line.startswith("GET") and "list-type" not in line
        ]

    def list_as_azure(self, exchange: Exchange) -> bool:
        """Answer the request with which Azure's client lists a container."""
        query = parse_qs(urlsplit(exchange.path).query)
        if "comp" not in query:
            return False
        prefix = query.get("prefix", [""])[0]
        listed = self.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        blobs = [AZURE_BLOB.format(**entry) for entry in listed.get("Contents", [])]
        body = f"<EnumerationResults><Blobs>{''.join(blobs)}</Blobs></EnumerationResults>"
        exchange.reply(200, body.encode())
        return True

    # --- faults

    def forbid(self, exchange: Exchange) -> bool:
        body = f"<Error><Code>AccessDenied</Code><AWSAccessKeyId>{KEY}</AWSAccessKeyId></Error>"
        exchange.reply(403, body.encode())
        return True

    def send_no_e_tag(self, exchange: Exchange) -> bool:
        """Answer like a proxy that drops ETags."""
        exchange.forward(without="etag")
        return True

    def hang(self, exchange: Exchange) -> bool:
        self.released.wait(PATIENCE)
        exchange.close_connection = True
        return True

    def hang_in_the_middle(self, exchange: Exchange) -> bool:
        """Send half of an object, and then nothing."""
        if not exchange.is_object():
            return False
        exchange.forward(0.5)
        return self.hang(exchange)

    def cut_off(self, exchange: Exchange) -> bool:
        """Close the connection in the middle of an object."""
        if not exchange.is_object():
            return False
        exchange.forward(0.5)
        return True


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    server = ObjectStore()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        server.moto.stop()
