"""The base class of the steps' arguments."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Self

from aerotrain.contract.errors import SpecError
from aerotrain.contract.strategy import nearest


class Arguments:
    """Arguments of a step, read from JSON. Unknown keys are errors."""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Build and check the arguments.

        Raises:
            SpecError: a key is unknown or missing, or a value is invalid.
        """
        known = {each.name: each for each in fields(cls)}  # type: ignore[arg-type]
        for key in data:
            if key not in known:
                raise SpecError(
                    f"{cls.__name__} has no {key!r}{nearest(key, list(known))}; "
                    f"it has {', '.join(known)}"
                )
        missing = [
            name
            for name, each in known.items()
            if each.default is MISSING and each.default_factory is MISSING and name not in data
        ]
        if missing:
            raise SpecError(f"{cls.__name__} needs {', '.join(missing)}; got {', '.join(data)}")
        return cls(**data)
