#!/usr/bin/env python3
"""Runs a container that breaks one of the platform's rules, as containers that people write may do.
It uses only the standard library. BREAKS names the rule (simulate/rules.py) that it breaks. Without
BREAKS, it keeps all rules, and answers with what it was sent. CAPACITY is the number of models that
it can hold at once in multi-model mode, and HOLDS is the number of MB that each of them takes. SLOW
is the number of seconds by which late answers are late."""

import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BREAKS = os.environ.get("BREAKS", "")
CAPACITY = int(os.environ.get("CAPACITY", "1000"))
HOLDS = int(os.environ.get("HOLDS", "0"))
SLOW = float(os.environ.get("SLOW", "60"))
MODEL = Path(os.environ.get("SERVE_MODEL_REPOSITORY", "/opt/ml/model"))
# calls with the body "wait" wait until this file exists
GO = Path(os.environ.get("TMPDIR", "/tmp")) / "go"
loaded: dict[str, str] = {}
memory: dict[str, bytearray] = {}
seen: list[str] = []
held: list[object] = []
servers: list[ThreadingHTTPServer] = []
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        seen.append("ping")
        called = "call" in seen
        if BREAKS == "ping-time" and called:
            time.sleep(SLOW)
        if BREAKS == "start-up" or (BREAKS == "ping-status" and called):
            return self.answer(503, b'{"error": "ill on purpose"}')
        return self.answer(200, b"well" if BREAKS == "ping-body" else b"")

    def do_POST(self) -> None:
        seen.append("call")
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/models":
            self.load()
        elif self.path.startswith("/models/"):
            self.invoke_model(self.path.split("/")[2])
        else:
            getattr(self, "break_" + BREAKS.replace("-", "_"), self.echo)()

    def do_DELETE(self) -> None:
        known = loaded.pop(self.path.split("/")[2], None)
        memory.pop(self.path.split("/")[2], None)
        if BREAKS == "unload-time":
            time.sleep(SLOW)
        self.answer(500 if BREAKS == "unload-status" else 200 if known else 404)

    def load(self) -> None:
        document = json.loads(self.body)
        if BREAKS == "load-time":
            time.sleep(SLOW)
        with lock:
            full = len(loaded) >= CAPACITY
            if BREAKS != "load-status" and not full:
                loaded[document["model_name"]] = self.headers["X-Amzn-SageMaker-Target-Model"]
                memory[document["model_name"]] = bytearray(os.urandom(1)) * (HOLDS * 2**20)
        self.answer(
            500 if BREAKS == "load-status" else 507 if full else 200, b"no room" if full else b""
        )

    def invoke_model(self, name: str) -> None:
        if BREAKS == "lost-model" and "lost" not in seen:
            seen.append("lost")
            loaded.pop(name)
        if name not in loaded:
            return self.answer(404)
        if (
            "No-Room" in self.headers.get("X-Amzn-SageMaker-Custom-Attributes", "")
            and len(loaded) > 1
        ):
            return self.answer(507, b"out of memory")
        return self.answer(200, loaded[name].encode(), **{"Content-Type": "text/plain"})

    def echo(self) -> None:
        """Return the request that arrived. Custom-Attributes are returned too, because a container
        has to do that itself."""
        document = {
            "path": self.path,
            "headers": dict(self.headers.items()),
            "body": self.body.decode("latin-1"),
            "port": os.environ["SAGEMAKER_BIND_TO_PORT"],
            "pid": os.getpid(),
            "pings": seen.count("ping"),
        }
        headers = {"Content-Type": "application/json"}
        if attributes := self.headers.get("X-Amzn-SageMaker-Custom-Attributes"):
            headers["X-Amzn-SageMaker-Custom-Attributes"] = attributes
        if self.headers.get("X-Amzn-SageMaker-Session-Id") == "NEW_SESSION":
            headers["X-Amzn-SageMaker-Session-Id"] = (
                f"s{time.monotonic_ns()}; Expires=2099-01-01T00:00:00Z"
            )
        if self.body == b"close":
            headers["X-Amzn-SageMaker-Closed-Session-Id"] = self.headers[
                "X-Amzn-SageMaker-Session-Id"
            ]
        while self.body == b"wait" and not GO.exists():
            time.sleep(0.02)
        self.answer(200, json.dumps(document).encode(), **headers)

    def break_time(self) -> None:
        time.sleep(SLOW)
        self.answer(200)

    def break_async_time(self) -> None:
        self.break_time()

    def break_status(self) -> None:
        self.answer(int(self.body or 500), b"broken on purpose")

    def break_reply_body(self) -> None:
        self.answer(200, bytes(100_000))

    def break_attributes(self) -> None:
        self.answer(200, b"", **{"X-Amzn-SageMaker-Custom-Attributes": "x" * 1025})

    def break_session(self) -> None:
        self.answer(200, b"", **{"X-Amzn-SageMaker-Session-Id": "an id without an end"})

    def break_exit(self) -> None:
        os._exit(7)

    def break_memory(self) -> None:
        held.append(bytearray(os.urandom(1)) * 300_000_000)
        self.answer(200)

    def break_listening(self) -> None:
        """Stop listening before the answer is sent, because the next call may follow
        immediately."""
        servers[0].socket.shutdown(socket.SHUT_RDWR)
        self.answer(200, b"", Connection="close")

    def break_model_read_only(self) -> None:
        try:
            (MODEL / "cache").write_text("mine")
            self.answer(200, b"written")
        except OSError as err:
            print(err, flush=True)
            self.answer(500, str(err).encode())

    def break_network(self) -> None:
        """Print the messages of a program that finds no network."""
        print("OSError: [Errno 101] Network is unreachable", flush=True)
        self.answer(500)

    def break_stream_time(self) -> None:
        self.chunks(b"one", b"two")
        time.sleep(SLOW)

    def break_stream(self) -> None:
        """Close the connection within a stream. No rule covers that."""
        self.chunks(b"one")
        self.connection.shutdown(socket.SHUT_RDWR)

    def chunks(self, *parts: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in parts:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    if BREAKS == "stop":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if BREAKS == "safe-ports":
        held.append(socket.create_server(("127.0.0.1", 9999)))
    if BREAKS == "early-exit":
        sys.exit("it ends before it listens")
    port = int(os.environ["SAGEMAKER_BIND_TO_PORT"])
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        servers.append(server)
        server.serve_forever()


if __name__ == "__main__":
    main()
