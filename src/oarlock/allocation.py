"""How the process gets memory from the system.

Every training step frees what it allocated, and glibc hands large pieces back to the system at once: the next step
gets them anew, page by page, which takes time. A process of our own keeps them; a program that imports Oarlock
decides for itself.
"""

import ctypes
import os
import platform

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # names of glibc's <malloc.h>
_NEVER = -1
OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Use again, from now on, what was freed in place of giving it back; return whether that could be arranged.
    Nothing is changed where the environment has settings of its own, and where the C library is not glibc."""
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in OF_THE_USER):
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(_TRIM_THRESHOLD, _NEVER) and libc.mallopt(_MMAP_MAX, 0))
