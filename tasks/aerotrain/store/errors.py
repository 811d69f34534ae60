"""The errors of a store, by what its user can do about them."""

import errno

from aerotrain.contract.errors import AerotrainError, FinalError, TemporaryError


class MissingError(FinalError):
    """There is no object with that key."""


class ExistsError(FinalError):
    """An object with that key exists, and the caller asked to create it."""


class CorruptError(FinalError):
    """An object differs from its manifest."""


class ChangedError(FinalError):
    """An object is no longer the version that was listed; list it again."""


class StoreRefused(FinalError):  # noqa: N818 -- names the state of the store
    """The store denied access: a wrong credential, or no permission."""


class StoreUnavailable(TemporaryError):  # noqa: N818 -- names the state of the store
    """The store did not answer, or cannot serve the request now."""


class StoreFull(TemporaryError):  # noqa: N818 -- names the state of the store
    """No space is left in the store, or on the disk of a download."""


#: The error numbers of a full disk. EFBIG comes from a file size limit, which acts like one.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MISSING = frozenset({errno.ENOENT, errno.EISDIR})


def store_error(error: OSError, url: str) -> AerotrainError:
    """Convert an error of the operating system at ``url`` to an error of the store."""
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
    return StoreUnavailable(f"{url} could not be used: {error}; check its disk")


def changed(url: str) -> ChangedError:
    """The error of an object whose ETag is no longer the listed one."""
    return ChangedError(
        f"{url} changed since it was listed; make sure that nothing writes to it meanwhile, and "
        "run the pipeline again, which lists it again"
    )


def replaced(url: str) -> ChangedError:
    """The error of an object that is no longer the version to be replaced."""
    return ChangedError(f"{url} changed since it was read; read it again before you replace it")
