"""Decorators hold for whole calls: of functions, methods, coroutines and generators."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import pytest

from pytorch_memlab._common.patching.wrapping import decorated
from pytorch_memlab.errors import UsageError


@pytest.fixture
def log():
    return []


@pytest.fixture
def decorate(log):
    @contextmanager
    def context():
        log.append("begins")
        try:
            yield
        finally:
            log.append("ends")

    return lambda func: decorated(context, func, "decorator")


def test_a_function_runs_inside(log, decorate):
    @decorate
    def add(a, b=1):
        """Sum of two."""
        log.append("runs")
        return a + b

    assert add(1, b=2) == 3
    assert log == ["begins", "runs", "ends"]
    assert (add.__name__, add.__doc__) == ("add", "Sum of two.")


def test_a_coroutine_runs_inside_until_its_end(log, decorate):
    @decorate
    async def wait():
        await asyncio.sleep(0)
        log.append("runs")
        return 5

    assert asyncio.run(wait()) == 5
    assert log == ["begins", "runs", "ends"]


def test_a_generator_runs_inside_until_its_end(log, decorate):
    @decorate
    def echo():
        heard = yield 1
        log.append(heard)
        return 7

    def outer():
        log.append((yield from echo()))

    running = outer()
    assert next(running) == 1
    assert log == ["begins"]
    with pytest.raises(StopIteration):
        running.send("hello")
    assert log == ["begins", "hello", "ends", 7]


def test_an_asynchronous_generator_runs_inside_until_its_end(log, decorate):
    @decorate
    async def echo():
        heard = 1
        while heard:
            try:
                heard = yield heard
            except KeyError as error:
                heard = str(error)
            finally:
                log.append("turn")

    async def talk():
        running = echo()
        assert log == []
        said = [await running.__anext__(), await running.asend("hello")]
        assert log == ["begins", "turn"]
        said.append(await running.athrow(KeyError("thrown")))
        with pytest.raises(StopAsyncIteration):
            await running.asend(None)
        assert log == ["begins", "turn", "turn", "turn", "ends"]
        return said

    assert asyncio.run(talk()) == [1, "hello", "'thrown'"]


def test_an_asynchronous_generator_that_is_closed_or_fails_ends_its_context(log, decorate):
    @decorate
    async def counting():
        try:
            yield 1
            raise ValueError("its own")
        finally:
            await asyncio.sleep(0)
            log.append("cleans up")

    async def close():
        running = counting()
        await running.__anext__()
        await running.aclose()

    async def fail():
        with pytest.raises(ValueError, match="its own"):
            async for _ in counting():
                pass

    for use in (close, fail):
        log.clear()
        asyncio.run(use())
        assert log == ["begins", "cleans up", "ends"]


def test_methods_of_all_kinds_run_inside(log, decorate):
    class Thing:
        @decorate
        def method(self):
            return self

        @staticmethod
        @decorate
        def static():
            return 1

        @classmethod
        @decorate
        def of_class(cls):
            return cls

    thing = Thing()
    assert (thing.method(), thing.static(), thing.of_class()) == (thing, 1, Thing)
    assert log == ["begins", "ends"] * 3


@pytest.mark.parametrize("kind", [staticmethod, classmethod, property])
def test_what_is_no_function_is_refused_at_once(decorate, kind):
    with pytest.raises(UsageError, match=f"@decorator takes a function.*type {kind.__name__}: put"):
        decorate(kind(len))
