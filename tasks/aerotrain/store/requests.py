"""Concurrent requests to a store, whose results come in the order of the requests.

Unlike with ``Executor.map``, a limited number of requests is ahead of the caller, so that results
that it has not used yet take limited memory.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Requests in flight, for small objects.
_AT_ONCE = 8


def each_of(request: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results of ``request`` for each item, by the threads of a pool that ends with them."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from in_order(pool, request, items, _AT_ONCE)


def in_order(
    pool: Executor, request: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[Result]:
    """The results of ``request`` for each item, ``ahead`` of them in ``pool`` at a time."""
    coming: deque[Future[Result]] = deque()
    try:
        for item in items:
            coming.append(pool.submit(request, item))
            if len(coming) == ahead:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        for each in coming:
            each.cancel()
