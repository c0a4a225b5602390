"""The options of a compilation, checked and resolved. This module imports no TVM."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from needle_runtime.errors import UsageError
from needle_runtime.target.precision import FLOAT32
from needle_tvm.compiler import products as libraries
from needle_tvm.errors import StageError
from needle_tvm.lower.variant import Variant
from needle_tvm.stages import OWN
from needle_tvm.target import precision
from needle_tvm.target.spec import TargetSpec, resolve
from needle_tvm.tune.options import Options

if TYPE_CHECKING:
    from needle_tvm.tune.status import Status

Progress = Callable[["str | Status"], None]  # str() of the argument is a line of text


class Choices(TypedDict, total=False):
    """The keywords of `compile` and `compile_torch`; the function `request` has the defaults."""

    target: str | dict[str, Any]
    stage: str
    dtype: str | None
    trials: int
    minutes: float | None
    threads: int | None
    recompile: bool
    seed: int
    cluster: str | None
    disable: Collection[str]
    products: str
    check: bool
    progress: Progress | bool | None


@dataclass(frozen=True)
class Request:
    """The checked and resolved keywords of a compilation.

    `shows_search` says whether `compile` itself shows the progress of a search.
    """

    spec: TargetSpec
    variant: Variant
    search: Options
    recompile: bool
    check: bool
    progress: Progress | None
    shows_search: bool

    @property
    def stage(self) -> str:
        """The stage's name."""
        return self.variant.stage

    def say(self, line: str) -> None:
        """Report a line of text."""
        if self.progress is not None:
            self.progress(line)


def request(
    *,
    target: str | dict[str, Any] = "cpu",
    stage: str = "tuned",
    dtype: str | None = None,
    trials: int = 0,
    minutes: float | None = None,
    threads: int | None = None,
    recompile: bool = False,
    seed: int = 0,
    cluster: str | None = None,
    disable: Collection[str] = (),
    products: str = OWN,
    check: bool = True,
    progress: Progress | bool | None = True,
) -> Request:
    """Return the request for these keywords of `compile`.

    Raises UsageError (StageError, TargetError) for a value that is invalid or conflicts with
    another one.
    """
    search = Options(trials, minutes, seed, cluster)
    search.check(stage)
    if not isinstance(disable, (list, tuple, set, frozenset)) or not all(
        isinstance(name, str) for name in disable
    ):  # a str would count as a list of its letters
        raise StageError(f"disable={disable!r}: must be a list of names, as in ['pack_pairs']")
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise UsageError(f"progress={progress!r}: must be a function, True or False")
    if disable and search.searches:
        raise StageError(f"disable={sorted(disable)}: a search uses all passes and rules")
    spec = resolve(target, threads)
    rounded = precision.check(dtype, spec, stage)
    if rounded != FLOAT32 and "narrow_products" in disable:
        raise StageError(f"disable=['narrow_products']: dtype={dtype!r} needs this pass to round")
    libraries.check(products, spec, stage, search)
    variant = Variant(stage, rounded, disable, libraries.choice(products, spec))
    report = None if isinstance(progress, bool) else progress
    shown = progress is True and search.searches
    return Request(spec, variant, search, recompile, check, report, shown)


def check_dims(asked: Request) -> None:
    """Raise UsageError for a request that code for many sizes cannot meet."""
    if asked.spec.is_gpu:
        raise UsageError("dims: code for GPUs is for one size only; compile it without dims")
    if asked.search.searches:
        raise UsageError(
            "dims: kernels for many sizes are not searched; compile without trials and minutes, or "
            "for one size"
        )
