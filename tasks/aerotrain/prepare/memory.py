"""Memory that is freed and taken again with every batch."""

import ctypes

#: Bytes that stay with the process; the arrays of one batch are a few times 4 MiB.
_KEPT = 64 * 2**20

# https://man7.org/linux/man-pages/man3/mallopt.3.html
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Let this process keep some memory that it frees, to use it again.

    glibc gives arrays of some megabytes back to the system at once, and a fault for each page
    that comes anew takes a third of the time of encoding.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have none, and keep more by themselves
        mallopt(_MMAP_THRESHOLD, _KEPT)
        mallopt(_TRIM_THRESHOLD, _KEPT)
