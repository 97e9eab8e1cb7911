"""Concurrent callers that count every answer."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import requests


@dataclass
class Load:
    """`callers` threads that call `request` until they are stopped; a call is a new connection.

    `answers` counts "STATUS code" of every reply; `refused` counts connections that were refused or closed before the
    first byte of a reply; `cut` counts replies that ended too early.
    """

    request: Callable[[int], requests.Response]
    callers: int
    answers: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    cut: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "Load":
        self._threads = [threading.Thread(target=self._call, args=(n,)) for n in range(self.callers)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _call(self, number: int) -> None:
        while not self._stop.is_set():
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
                self.answers[_name(reply)] += 1
            number += self.callers


def _name(reply: requests.Response) -> str:
    return "200" if reply.status_code == 200 else f"{reply.status_code} {reply.json()['code']}"
