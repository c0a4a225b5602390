"""`compile_torch`: from a PyTorch model to checked and cached code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from needle.errors import DimError, ModelError, TraceError, UnsupportedError
from needle.sizes.dims import Expression
from needle.trace import Graph
from needle_runtime._tvm.ffi import read_symbols
from needle_runtime.errors import InstallError, UsageError
from needle_runtime.process.turns import compiling
from needle_tvm.compiler.compiler import compile_source
from needle_tvm.compiler.request import check_dims, request
from needle_tvm.errors import TranslationError
from needle_tvm.frontend.loaded_models import described, graph_of, with_ranges
from needle_tvm.frontend.model import source_of, with_updates
from needle_tvm.frontend.source import Array, FixedWeights, Source

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from needle.torch.loading import Loaded
    from needle_tvm.compiler.executable import Executable
    from needle_tvm.compiler.request import Choices, Request


def compile_torch(
    model: Any,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    dims: Mapping[Any, Any] | Sequence[Any] | None = None,
    trusted: bool = False,
    **choices: Unpack[Choices],
) -> Executable:
    """Compile a `torch.nn.Module` for inputs like these; `choices` are as in `compile`.

    It compiles the Module that `needle.torch.load` returns for the model. `model` may also be an
    `ExportedProgram` of `torch.export`, or the path of a file (`.pt2`) that `torch.export.save`
    wrote. Reading a file runs no code from it. A file that needs to run code, such as one whose
    example inputs are objects of your own class, is refused unless `trusted` is True. Without
    `inputs`, the inputs of the export are the examples, and the export's open sizes must be
    given as `dims` again.

    `inputs`, and `kwargs` by name, are the model's arguments: tensors; tuples, lists, dicts and
    dataclasses of tensors; and objects that hold tensors, such as a cache of keys and values.
    Numbers, strings and None are fixed for all calls, which may leave them out. A call passes
    `kwargs` by name. Results have the model's structure: for a dataclass, or another object with
    tensors, an object with the same attributes (`result.logits`).

    Parameters and floating-point buffers keep their `state_dict` names. Other buffers become
    constants of the code, unless the model writes to them. The weights are copied now: later
    changes to the model reach the code only through `set_params`, which takes a `state_dict`. The
    result takes torch tensors, NumPy arrays and needle Tensors, and exports like any executable.
    Each call of `compile_torch` imports PyTorch and exports the model, even if the code is cached.

    Parameters and buffers that the model's `forward` writes to are its state, which the code shares
    with the model: each call reads them from the model's tensors and writes them to these tensors,
    in place. So calls of the code and of the model may alternate. After `set_params`, and when
    exported and loaded, the code has its own state.

    `dims` is as for `compile`, or like `dynamic_shapes` of `torch.export`: it may be a sequence
    with an entry for each argument, entries may be nested like the arguments, lists may have a dim
    or None for each axis, and torch's own `Dim("n", max=64)` or `Dim.AUTO(max=64)` may stand for a
    dim. Axes that `torch._dynamo.mark_dynamic` has marked are dims as well. Each dim needs a
    largest size, and no size is 0. Marked or hinted axes get one dim if the model needs them to be
    equal.

    Unless `check` is False, the model's results on the examples are compared with PyTorch's before
    code is generated, and the code's results are then compared with the model's, as in `compile`.

    Raises InstallError without PyTorch, and the errors of `compile`. Raises UsageError for a dim
    whose sizes the model distinguishes: the model branches or loops on the size, needs it to equal
    a number or another dim, or treats a size of 1 specially. Raises TranslationError for a model
    that PyTorch itself cannot run on these inputs or at other sizes of the dims, that cannot be
    exported, has an operator without a converter, draws random numbers (dropout in training mode
    does), writes to its inputs, computes tensors whose shapes depend on values, or takes or returns
    anything but dense tensors of real numbers.
    """
    if not isinstance(trusted, bool):
        raise UsageError(f"trusted={trusted!r}: must be True or False")
    asked = request(**choices)
    if dims:
        check_dims(asked)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise InstallError(f"PyTorch cannot be imported ({error}): pip install torch") from error
    from needle.torch.loading import loaded

    read_symbols()
    with compiling, _refusals():
        found = loaded(model, inputs, kwargs or {}, dims, trusted)
        if found.asked.dims:  # dims may also come from marks on the inputs
            check_dims(asked)
        _check_real(found)
        source, oracle = _source(found, asked)
    with _refusals():
        try:
            return compile_source(source, asked)
        finally:
            oracle.done()


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Within this context, turn needle's errors for a model into needle_tvm's."""
    try:
        yield
    except DimError as error:
        raise UsageError(str(error)) from error
    except (ModelError, TraceError) as error:
        raise TranslationError(str(error)) from error


def _check_real(found: Loaded) -> None:
    """Raise TranslationError for complex numbers among inputs, results or state: NumPy arrays and
    results of compiled code are real."""
    (output,) = [node for node in found.functional.graph.nodes if node.op == "output"]
    values = [getattr(node, "meta", {}).get("val") for node in output.args[0]]
    places = [
        *((f"{place} is", tensor) for place, tensor in found.flat.placed),
        *(
            (f"{type(found.flat.model).__name__}: a result or a written tensor is", value)
            for value in values
        ),
    ]
    for what, tensor in places:
        if getattr(getattr(tensor, "dtype", None), "is_complex", False):
            raise TranslationError(
                f"{what} of {tensor.dtype}, which compiled code does not take or return: give and "
                "return the real and the imaginary parts, by torch.view_as_real"
            )


def loaded_source(found: Loaded, asked: Request) -> Source:
    """Return the `Source` of a loaded model, which is not compared with PyTorch."""
    return _source(found, replace(asked, check=False))[0]


def _source(loaded: Loaded, asked: Request) -> tuple[Source, _Oracle]:
    """Return the `Source` of a loaded model. When code is generated, the source's reference is
    compared with PyTorch first; code from the cache was compared when it was generated."""
    from needle.torch.shared_state import SharedState

    graph = traced(loaded)
    source = source_of(graph, asked.variant)
    module = loaded.module
    parts = described(module, graph, loaded.flat.model.state_dict())
    # If a converter is wrong, two different programs may have the same graph. They must not share
    # code.
    key = module.program.fingerprint(), repr(parts), f"{asked.check}"
    source = replace(
        source,
        fingerprint=source.fingerprint_with("torch", *key),
        weights=FixedWeights(source.weights.values()),
    )
    if module.written:
        source = replace(source, state=SharedState(loaded.flat.model, module.written))
    oracle = _Oracle(loaded, source)

    def lower(target: Any) -> tuple[Any, dict[str, Any]]:
        if asked.check:
            oracle.compare()
        lowered, signature = source.lower(target)
        signature = {**with_ranges(module, signature), **parts}
        return with_updates(lowered, signature), signature

    return replace(source, lower=lower, reference=oracle.reference), oracle


def traced(found: Loaded) -> Graph:
    """Return the graph of a loaded model as a function of a list of tensors."""
    from needle.torch.arrays import array_of

    examples, dims = [], dict[str, Any]()
    inputs = found.module.program.inputs
    for (name, result), (_, tensor) in zip(inputs, found.flat.tensors, strict=True):
        examples.append(array_of(tensor))
        axes = {axis: n for axis, n in enumerate(result.shape) if isinstance(n, Expression)}
        if axes:
            dims[name] = axes
    return graph_of(found.module, examples, dims)


class _Oracle:
    """A comparison of a source's reference with PyTorch; each of the two runs once."""

    def __init__(self, found: Loaded, source: Source) -> None:
        self._loaded: Loaded | None = found
        self._source, self._results = source, dict[int, list[Array]]()

    def compare(self) -> None:
        """Raise ModelError, which names the first node at fault, if results differ."""
        from needle.torch import oracle
        from needle.torch.arrays import tensor_of

        assert self._loaded is not None, "lowering must come before done()"
        module, flat, functional = (
            getattr(self._loaded, name) for name in ("module", "flat", "functional")
        )
        params = self._source.params()
        for inputs in self._source.examples:
            # The state follows the inputs; the model already has it.
            tensors = list(map(tensor_of, inputs[: len(module.program.inputs)]))
            open_sizes = module.program.sizes([tuple(each.shape) for each in tensors])
            sizes = {dim.name: size for dim, size in open_sizes.items()}
            wanted = oracle.of_pytorch(flat, tensors, module.written, sizes)
            found = self._source.reference(inputs, params)
            try:
                oracle.compare(module, functional, tensors, found, wanted, sizes)
            except UnsupportedError:
                raise
            except ModelError:
                # The tolerance suits common networks; explain() bounds each op's rounding error.
                if self._source.explain(inputs, wanted) is not None:
                    raise
            self._results[id(inputs)] = found

    def reference(self, inputs: list[Array], params: Mapping[str, Array]) -> list[Array]:
        """Return the source's reference results, reusing those from `compare` if it ran on these
        inputs."""
        known = self._results.pop(id(inputs), None)
        return self._source.reference(inputs, params) if known is None else known

    def done(self) -> None:
        """Drop the model and the results."""
        self._loaded = None
        self._results.clear()
