"""Settings of glibc's allocator for arrays that are freed and allocated with every batch."""

import ctypes

#: Bytes that the process keeps; the arrays of one batch are a few times 4 MiB.
_KEPT = 64 * 2**20

# https://man7.org/linux/man-pages/man3/mallopt.3.html
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Let this process keep freed memory for reuse.

    By default glibc returns arrays of some megabytes to the system at once, and the page faults
    of the next allocation take a third of the time of encoding.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries lack it, and keep more by themselves
        mallopt(_MMAP_THRESHOLD, _KEPT)
        mallopt(_TRIM_THRESHOLD, _KEPT)
