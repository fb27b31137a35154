"""Decorating with a context: plain functions, generators, coroutines and asynchronous generators alike."""

from __future__ import annotations

import functools
import inspect
from contextlib import AbstractContextManager
from typing import Any, Callable, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def around(function: F, make: Callable[[], AbstractContextManager[Any]]) -> F:
    """``function`` inside a context of its own for each call.

    Of a generator or coroutine the context is entered when its code first runs, not when it is made; and left
    when its code has ended, by returning, raising, or being closed. In between it stays entered, also while the
    code is suspended.
    """
    if not callable(function):
        raise TypeError(f"only a function can be decorated, not {type(function).__name__}")
    wrapper: Callable[..., Any]
    if inspect.isasyncgenfunction(function):

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make():
                source = function(*args, **kwargs)
                try:
                    item = await source.__anext__()
                    while True:
                        try:
                            sent = yield item
                        except GeneratorExit:
                            raise
                        except BaseException as thrown:
                            item = await source.athrow(thrown)
                        else:
                            item = await source.asend(sent)
                except StopAsyncIteration:
                    return
                finally:
                    await source.aclose()

    elif inspect.iscoroutinefunction(function):

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make():
                return await function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make():
                return (yield from function(*args, **kwargs))

    else:

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make():
                return function(*args, **kwargs)

    return cast(F, functools.wraps(function)(wrapper))
