"""Right results, and wrong ones that a comparison must find: pairs of expected and found arrays."""

import ml_dtypes
import numpy as np

SPECIAL = np.array([1.0, 2.0, np.nan, np.inf])
EMPTY = np.zeros((0, 3), np.float32)


def planted(dtype, by, size=4):
    """An array of small integers, and a copy whose last element but one is off by `by`."""
    expected = (np.arange(size) % 8).astype(dtype)
    found = expected.copy()
    found[-2] = found[-2] + by
    return expected, found


WRONG = {
    "shape": (np.ones(2), np.ones(3)),
    "number of axes": (np.ones(2), np.ones((1, 2))),
    "shape without elements": (EMPTY, EMPTY.T),
    "wider dtype": (np.ones(2), np.ones(2, np.float32)),
    "other integers": (np.ones(2, np.int32), np.ones(2, np.int64)),
    "integers for floats": (np.ones(2), np.ones(2, np.int64)),
    "NaN found": (SPECIAL, np.array([1.0, np.nan, np.nan, np.inf])),
    "NaN lost": (SPECIAL, np.array([1.0, 2.0, 3.0, np.inf])),
    "sign of an infinity": (SPECIAL, np.array([1.0, 2.0, np.nan, -np.inf])),
    "infinity found": (SPECIAL, np.array([1.0, np.inf, np.nan, np.inf])),
    "infinity lost": (SPECIAL, np.array([1.0, 2.0, np.nan, 1e300])),
    "bool": (np.array([True, False]), np.array([True, True])),
    "of no axes": (np.array(1.0), np.array(1.001)),
    "zero expected": (np.zeros(3), np.array([0, 0, 0.001])),
    "a part of a complex": (np.array([1 + 2j, 3]), np.array([1 + 2.1j, 3])),
    "one of a million": planted("float32", 0.01, 10**6),
    **{f"one {each}": planted(each, 1) for each in ("float16", "float32", "float64")},
    **{f"one {each}": planted(each, 1) for each in ("int8", "uint8", "int32", "uint64", "int64")},
    "one bfloat16": planted(ml_dtypes.bfloat16, 1),
}

RIGHT = {
    "no elements": (EMPTY, EMPTY),
    "NaN and infinity": (SPECIAL, SPECIAL),
    "signs of zero": (np.array([0.0, -0.0]), np.array([-0.0, 0.0])),
    "a rounding": (np.ones(3, np.float32), np.nextafter(np.ones(3, np.float32), np.float32(2))),
    "a sum that cancels": (np.array([1e6, 0], np.float32), np.array([1e6, 1e-2], np.float32)),
    "bools": (np.array([True, False]), np.array([True, False])),
    "bfloat16": planted(ml_dtypes.bfloat16, 0),
    "complex": (np.array([1 + 2j, np.nan]), np.array([1 + 2j, np.nan])),
}
