"""Weights by name, put in the order of the compiled code's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from needle_runtime.artifact.arrays import as_numpy, describe
from needle_runtime.artifact.function import Function, digest_of
from needle_runtime.errors import InputError, ParameterError


def in_order(
    main: Function, params: Mapping[str, Any], state: bool = True, weights: bool = True
) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of `params` in the order of the function `main`: its parameters (unless
    `weights` is False), then its state (unless `state` is False).

    A parameter with several names (listed in `ties`) may be given under any of them; arrays that
    the code does not read are allowed too. Raises ParameterError for a value that is not a mapping.
    Otherwise the error lists every name that is missing, unexpected, masked or of another shape or
    dtype, all names of one parameter with different values, and every constant whose
    value differs from the code's.
    """
    if not isinstance(params, Mapping):
        raise ParameterError(f"weights: a {type(params).__name__} is not a dict of arrays by name")
    array_specs = (*(main.params if weights else ()), *(main.state if state else ()))
    specs = {spec.name: spec for spec in array_specs}
    ties = main.ties if weights else ()
    tied = {name: group for group in ties for name in group}
    by_name: dict[str, np.ndarray[Any, Any]] = {}
    problems = []
    for name, value in params.items():
        is_fixed = weights and name in main.fixed
        if name not in specs and name not in tied and not is_fixed:
            problems.append(f"unexpected {name!r}")
            continue
        if is_fixed and main.fixed[name] is None:
            continue
        try:
            array = np.asarray(as_numpy(value, repr(name)))
        except InputError as error:
            problems.append(str(error))
            continue
        if not is_fixed:
            by_name[name] = array
        elif digest_of(array) != main.fixed[name]:
            problems.append(f"{name!r} is a constant of the code, compiled with another value")
    arrays = []
    for name, spec in specs.items():
        known_as = next((each for each in (name, *tied.get(name, ())) if each in params), None)
        if known_as is None:
            problems.append(f"missing {name!r}")
        elif known_as in by_name:
            array = by_name[known_as]
            if array.shape != spec.shape or str(array.dtype) != spec.dtype:
                problems.append(
                    f"{known_as!r} is {describe(array.shape, str(array.dtype))}, "
                    f"not {describe(spec.shape, spec.dtype)}"
                )
            arrays.append(array)
    for group in ties:
        first, *others = [name for name in group if name in by_name] or [""]
        problems += [
            f"{first!r} and {other!r} are one parameter and have different values"
            for other in others
            if not _same(by_name[first], by_name[other])
        ]
    if problems:
        raise ParameterError("weights do not fit: " + "; ".join(problems))
    return arrays


def _same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays hold the same bits."""
    alike = one.shape == other.shape and one.dtype == other.dtype
    return one is other or (alike and one.tobytes() == other.tobytes())
