"""Weights by name, put in the order that compiled code takes them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from needle_tvm.artifact.arrays import as_numpy, describe
from needle_tvm.artifact.function import Function
from needle_tvm.errors import InputError, ParameterError


def in_order(main: Function, params: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    """The arrays of `params` in the order that the function `main` takes them in.

    A parameter with several names (`ties` lists them) may be given under any of them. Raises
    ParameterError for a value that is not a mapping. Otherwise the error lists every name that is
    missing, unexpected, masked or of another shape or dtype, and the names of one parameter that
    are given different values.
    """
    if not isinstance(params, Mapping):
        raise ParameterError(f"weights: a {type(params).__name__} is no dict of arrays by name")
    specs = {spec.name: spec for spec in main.params}
    tied = {name: group for group in main.ties for name in group}
    given: dict[str, np.ndarray[Any, Any]] = {}
    problems = []
    for name, value in params.items():
        if name not in specs and name not in tied:
            problems.append(f"unexpected {name!r}")
            continue
        try:
            given[name] = np.asarray(as_numpy(value, repr(name)))
        except InputError as error:
            problems.append(str(error))
    arrays = []
    for name, spec in specs.items():
        known_as = next((each for each in (name, *tied.get(name, ())) if each in params), None)
        if known_as is None:
            problems.append(f"missing {name!r}")
        elif known_as in given:
            array = given[known_as]
            if array.shape != spec.shape or str(array.dtype) != spec.dtype:
                problems.append(
                    f"{known_as!r} is {describe(array.shape, str(array.dtype))}, "
                    f"not {describe(spec.shape, spec.dtype)}"
                )
            arrays.append(array)
    for group in main.ties:
        first, *others = [name for name in group if name in given] or [""]
        problems += [
            f"{first!r} and {other!r} are one parameter and have different values"
            for other in others
            if not _same(given[first], given[other])
        ]
    if problems:
        raise ParameterError("weights do not fit: " + "; ".join(problems))
    return arrays


def _same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays hold the same bits."""
    alike = one.shape == other.shape and one.dtype == other.dtype
    return one is other or (alike and one.tobytes() == other.tobytes())
