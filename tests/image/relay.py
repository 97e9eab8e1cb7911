"""Make a container without a network reachable: python relay.py PORT PID, as root.

It listens on 127.0.0.1:PORT of this machine and connects to 127.0.0.1:8080 in the network namespace
of process PID.
"""

import asyncio
import ctypes
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

CLONE_NEWNET = 0x40000000  # linux/sched.h
CONTAINER = ("127.0.0.1", 8080)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward a caller's connection, or close it if nothing listens in the container."""
    try:
        callee, to_callee = await asyncio.open_connection(*CONTAINER)
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, to_callee), pump(callee, writer))
    for connection in (writer, to_callee):
        connection.close()


async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass on all data, and then the end of the stream."""
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    with suppress(OSError):
        target.write_eof()


async def main(port: int, pid: int) -> None:
    with socket.create_server(("127.0.0.1", port), backlog=128) as listener:
        libc = ctypes.CDLL(None, use_errno=True)
        # connections that are opened from now on are opened in that namespace
        with Path(f"/proc/{pid}/ns/net").open() as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        async with await asyncio.start_server(answer, sock=listener) as server:
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
