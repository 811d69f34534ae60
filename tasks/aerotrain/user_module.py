"""Import of the user's module from the job's code folder."""

import importlib
from types import ModuleType

from aerotrain.contract.errors import FinalError


def user_module(name: str, purpose: str) -> ModuleType:
    """Import the module ``name``, which is needed ``purpose``, such as ``"to read the data"``.

    Raises:
        FinalError: there is no such module.
        ModuleNotFoundError: the module imports another one that does not exist.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise FinalError(
            f"there is no module {name!r} {purpose}; check that the folder that holds it is "
            "the job's code folder"
        ) from error
