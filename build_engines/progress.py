"""Progress bars on standard error; none where it is no terminal."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


def over(items: Iterable[T], what: str) -> Iterator[T]:
    """Yields the items and counts them."""
    yield from tqdm(items, desc=what, disable=None, leave=False)


def of_bytes(what: str, total: int, start: int = 0) -> "tqdm[None]":
    """A bar to be updated by numbers of bytes; `total` 0 means unknown."""
    return tqdm(desc=what, total=total or None, initial=start, unit="B", unit_scale=True, disable=None, leave=False)
