"""How a store fails, by what its user can do about it."""

import errno

from aerotrain.contract.errors import AerotrainError, FinalError, TemporaryError


class MissingError(FinalError):
    """There is no object of that key."""


class ExistsError(FinalError):
    """There is an object of that key already, and the caller wanted to be the first."""


class CorruptError(FinalError):
    """An object is not what its manifest says it is."""


class ChangedError(FinalError):
    """An object is no longer the one that was listed; list it again, and read that."""


class StoreRefused(FinalError):  # noqa: N818 -- reads as what befell the store
    """The store answered, and refused the credential or the permission."""


class StoreUnavailable(TemporaryError):  # noqa: N818 -- reads as what befell the store
    """The store did not answer, or answered that it cannot serve now."""


class StoreFull(TemporaryError):  # noqa: N818 -- reads as what befell the store
    """No room is left, in the store or on the disk that a download goes to."""


#: How the system says that no room is left. EFBIG is what a file-size limit gives; to its user it
#: is a disk that takes no more.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MISSING = frozenset({errno.ENOENT, errno.EISDIR})


def explained(error: OSError, url: str) -> AerotrainError:
    """What an error of the operating system at ``url`` means to the store's user."""
    if error.errno in FULL:
        return StoreFull(
            f"no room is left for {url} ({error.strerror}); free some space and try again"
        )
    if error.errno in _REFUSED:
        return StoreRefused(
            f"this process may not read or write {url} ({error.strerror}); "
            "change its permissions or name another store"
        )
    if error.errno in _MISSING:
        return MissingError(f"there is no {url}; check the URL, or the step that should write it")
    if error.errno == errno.ENOTDIR:
        return FinalError(f"a part of {url} is a file and cannot be a folder; name another key")
    return StoreUnavailable(f"{url} could not be used: {error}; see whether its disk is well")


def changed(url: str) -> ChangedError:
    """The error of an object whose tag is another than the one that was listed."""
    return ChangedError(
        f"{url} changed since it was listed; see that nothing writes to it meanwhile, and run "
        "the pipeline again, which lists it anew"
    )


def replaced(url: str) -> ChangedError:
    """The error of an object that is no longer the version which was to be replaced."""
    return ChangedError(f"{url} changed since it was read; read it again before you replace it")
