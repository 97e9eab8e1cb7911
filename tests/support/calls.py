"""Finds the tests that start a server: they or their fixtures call, maybe indirectly, what `starts_a_server` marks."""

from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import pytest


def needs_a_server(item: pytest.Function) -> bool:
    fixtures = [definition.func for found in item._fixtureinfo.name2fixturedefs.values() for definition in found]
    return any(starts_a_server(each) for each in (item.function, *fixtures))


@cache
def starts_a_server(called: Any) -> bool:
    return any(getattr(each, "starts_a_server", False) for each in _reached(called, set()))


def _reached(called: Any, seen: set[Any]) -> Iterator[Any]:
    """The tests' functions and classes that this one names, directly or through others."""
    yield called
    for function in _functions(called):
        for name in _names(function.__code__):
            found = function.__globals__.get(name)
            if isinstance(found, FunctionType | type) and found.__module__.startswith("tests.") and found not in seen:
                seen.add(found)
                yield from _reached(found, seen)


def _functions(called: Any) -> list[FunctionType]:
    members = vars(called).values() if isinstance(called, type) else [called]
    return [getattr(each, "__wrapped__", each) for each in members if isinstance(each, FunctionType)]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
