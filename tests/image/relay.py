"""Makes a container without a network reachable: python relay.py PORT PID, as root.

It listens on 127.0.0.1:PORT of this machine and connects to 127.0.0.1:8080 in the network namespace of process PID.
"""

import contextlib
import ctypes
import os
import socket
import sys
import threading
from pathlib import Path

CLONE_NEWNET = 0x40000000  # linux/sched.h
CONTAINER = ("127.0.0.1", 8080)


def enter_network_of(pid: int) -> None:
    """What this process connects to from now on is there; OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{pid}/ns/net").open() as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def serve(listener: socket.socket) -> None:
    while True:
        caller, _ = listener.accept()
        threading.Thread(target=connect, args=(caller,), daemon=True).start()


def connect(caller: socket.socket) -> None:
    """Closes a caller's connection when nothing listens in the container."""
    try:
        callee = socket.create_connection(CONTAINER, timeout=5)
    except OSError:
        caller.close()
        return
    callee.settimeout(None)
    back = threading.Thread(target=pump, args=(callee, caller), daemon=True)
    back.start()
    pump(caller, callee)
    back.join()
    caller.close()
    callee.close()


def pump(source: socket.socket, target: socket.socket) -> None:
    """All that comes, and then the end."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    port, process = map(int, sys.argv[1:])
    with socket.create_server(("127.0.0.1", port), backlog=128) as server:
        enter_network_of(process)
        serve(server)
