"""The hyperparameters of the user's module, and which of them it reads.

A key that nothing reads would change nothing: it is misspelt, or of another module.
"""

import sys
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, field
from typing import Any

from aerotrain.contract.errors import FinalError, nearest

#: The references to an object that only its caller has: a variable, and an argument.
_OWN_REFERENCES = 2


@dataclass
class Reads:
    """The keys that a module has read, or whether it may read any of them."""

    keys: set[str] = field(default_factory=set)
    any: bool = False

    def call(self, function: Callable[[Any], Any], hparams: Mapping[str, Any]) -> Any:
        """The result of ``function(hparams)``, whose reads are recorded.

        A function that keeps its argument may read it later, so nothing is known about its keys.
        """
        recorded = _Recorded(hparams, self)
        result = function(recorded)
        self.any |= sys.getrefcount(recorded) > _OWN_REFERENCES
        return result

    def check(self, module: str, hparams: Mapping[str, Any]) -> None:
        """Check that ``module`` has read every one of ``hparams``.

        Raises:
            FinalError: it has not; the message suggests the nearest key that it reads.
        """
        for key in () if self.any else sorted(hparams.keys() - self.keys):
            unread = f"build_model of {module!r} does not read hparams[{key!r}]"
            raise FinalError(
                f"{unread}{nearest(key, self.keys)}; it reads "
                f"{', '.join(sorted(self.keys)) or 'none'}"
            )


class _Recorded(dict[str, Any]):
    """A dict that records which of its keys are read."""

    def __init__(self, values: Mapping[str, Any], reads: Reads) -> None:
        super().__init__(values)
        self._reads = reads

    def __getitem__(self, key: str) -> Any:
        self._reads.keys.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._reads.keys.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._reads.keys.add(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self._reads.keys.add(key)
        return super().pop(key, *default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        self._reads.keys.add(key)
        return super().setdefault(key, default)

    # What follows reads all keys. Python calls ``keys`` for ``**hparams``, as there is an __iter__.

    def __iter__(self) -> Iterator[str]:
        self._reads.any = True
        return super().__iter__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]  # a view of a view is none
        self._reads.any = True
        return super().keys()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        self._reads.any = True
        return super().values()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        self._reads.any = True
        return super().items()

    def copy(self) -> dict[str, Any]:
        self._reads.any = True
        return super().copy()

    def __or__(self, other: Any) -> Any:
        self._reads.any = True
        return super().__or__(other)

    def __ror__(self, other: Any) -> Any:
        self._reads.any = True
        return super().__ror__(other)
