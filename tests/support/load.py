"""Calls a server from several threads, and counts every answer."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import requests


class Threads:
    """Runs `_call` in `callers` threads from the start of the context until its end, which sets
    `_stop`."""

    callers: int

    def __enter__(self) -> Self:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(n,), daemon=True) for n in range(self.callers)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _call(self, number: int) -> None:
        raise NotImplementedError


@dataclass
class Load(Threads):
    """Calls `request` from several threads, each time on a new connection, with `pause` seconds
    between two calls of a thread.

    `answers` counts replies by status and code; `refused` counts connections that were refused or
    closed before the first byte of a reply; `cut` counts replies that ended too early.
    """

    request: Callable[[int], requests.Response]
    callers: int
    pause: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    cut: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _call(self, number: int) -> None:
        while not self._stop.wait(self.pause):
            try:
                reply = self.request(number)
            except requests.ConnectionError:
                with self._lock:
                    self.refused += 1
                time.sleep(0.05)
                continue
            except requests.exceptions.ChunkedEncodingError:
                with self._lock:
                    self.cut += 1
                continue
            with self._lock:
                self.answers[_status(reply)] += 1
            number += self.callers  # so that no two calls have the same number


def _status(reply: requests.Response) -> str:
    """Return "200", or the status of an error and its code."""
    return "200" if reply.status_code == 200 else f"{reply.status_code} {reply.json()['code']}"
