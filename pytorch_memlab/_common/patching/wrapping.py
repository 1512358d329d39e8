"""A decorator's body: every call of a function within a context, whatever kind of function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ...errors import UsageError


def decorated(
    context: Callable[[], AbstractContextManager[Any]], func: Callable[..., Any], decorator: str
) -> Any:
    """``within`` for what a user decorates."""
    if not callable(func) or isinstance(func, staticmethod):
        raise UsageError(
            f"@{decorator} takes a function, and this is of type {type(func).__name__}: put it "
            "right above the def, below @staticmethod, @classmethod or @property"
        )
    return within(context, func)


def within(
    context: Callable[[], AbstractContextManager[Any]], func: Callable[..., Any]
) -> Callable[..., Any]:
    """A function that does the same as another, each call within a new context until its end."""
    if inspect.iscoroutinefunction(func):

        @functools.wraps(func)
        async def run_coroutine(*args: Any, **kwargs: Any) -> Any:
            with context():
                return await func(*args, **kwargs)

        return run_coroutine
    if inspect.isgeneratorfunction(func):

        @functools.wraps(func)
        def run_generator(*args: Any, **kwargs: Any) -> Any:
            with context():
                return (yield from func(*args, **kwargs))

        return run_generator
    if inspect.isasyncgenfunction(func):

        @functools.wraps(func)
        async def run_async_generator(*args: Any, **kwargs: Any) -> Any:
            with context():
                inner = func(*args, **kwargs)
                step = inner.__anext__()
                while True:
                    try:
                        item = await step
                    except StopAsyncIteration:
                        return
                    try:
                        sent = yield item
                    except GeneratorExit:
                        await inner.aclose()
                        raise
                    except BaseException as error:
                        step = inner.athrow(error)
                    else:
                        step = inner.asend(sent)

        return run_async_generator

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        with context():
            return func(*args, **kwargs)

    return run
