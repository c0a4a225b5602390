"""Put the arrays that the judges pass to compiled code next to inaccessible pages.

A kernel may read past an array and discard the extra values. Its results are right, unless the
array lies at the end of the process's memory. Next to an inaccessible page, such a read crashes the
process at once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np


def fenced(array: np.ndarray[Any, Any], at_end: bool) -> np.ndarray[Any, Any]:
    """Copy an array into memory that ends before an inaccessible page, or begins after one."""
    page = mmap.PAGESIZE
    inside = max(1, -(-array.nbytes // page)) * page
    region = mmap.mmap(-1, page + inside + page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None, use_errno=True)
    for fence in (begin, begin + page + inside):
        if libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 0):
            code = ctypes.get_errno()
            raise OSError(code, f"mprotect: {os.strerror(code)}")
    place = page + (inside - array.nbytes) * at_end
    found: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, region, place)
    found[...] = array
    return found
