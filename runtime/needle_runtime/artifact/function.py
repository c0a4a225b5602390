"""The signature of a compiled function, as an artifact's manifest describes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from needle_runtime.artifact import trees
from needle_runtime.artifact.sizes import Dim, Shape, Sizes, parse_dims, parse_extents, parse_shape


@dataclass(frozen=True)
class ArraySpec:
    """A named array: its shape and dtype and, for an array of indices, the `range` of valid
    values."""

    name: str
    shape: Shape  # ints, and extents that depend on the dims
    dtype: str  # a name: NumPy's bfloat16 needs a package that is needed only to run
    range: Shape | None = None  # (least, largest)


@dataclass(frozen=True)
class GraphNames:
    """The functions of a CUDA graph: `function` is captured, and `results` allocates new
    results."""

    function: str
    results: str


@dataclass(frozen=True)
class Function:
    """The function `main`: its arrays in the code's order, and the structure of its calls.

    `ties` lists the names of parameters with several names. `arguments` and `output_tree` are the
    structure of a call and of its result (`artifact.trees`); with `bare_output` the code returns
    one array instead of a list. `transform` is the function that packs the weights, `by_kernel` is
    `main` without merged kernels, and `graph` is present if `main` may be captured. With
    `any_address`, inputs need only be aligned to their elements. `dims` are the sizes that are left
    to the call, and `sizes` finds them. `state` describes the last inputs: the model keeps them
    between calls, and their new values are the last outputs; `arguments` and `output_tree` do not
    include them. `fixed` has names in the model's `state_dict` that are not parameters of the code:
    constants, with a digest (`digest_of`), and arrays that the code does not read, with None.
    `unsaved` are parameters of the code that are not in a `state_dict`. `in_place` has pairs of
    numbers (output, input): `main_in_place` writes the output to the input's memory.
    """

    inputs: tuple[ArraySpec, ...]
    params: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    ties: tuple[tuple[str, ...], ...]
    arguments: Sequence[Mapping[str, Any]]
    output_tree: Any
    bare_output: bool
    transform: str | None
    by_kernel: str | None
    graph: GraphNames | None
    any_address: bool
    dims: tuple[Dim, ...]
    sizes: Sizes = field(compare=False)  # determined by `dims` and `inputs`
    state: tuple[ArraySpec, ...] = ()
    fixed: Mapping[str, str | None] = field(default_factory=dict)
    unsaved: tuple[str, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arrays in a call's arguments, in the order of `inputs`. Raises InputError if
        the arguments have a different structure."""
        return trees.flatten_arguments(self.arguments, args, kwargs)

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """Return the arrays `outputs` in the structure of the model's result."""
        return trees.unflatten(self.output_tree, outputs)


def parse(entry: Mapping[str, Any]) -> Function:
    """Return the function that an entry of a manifest describes.

    Raises ValueError, AttributeError, KeyError, RecursionError or TypeError if a part is missing or
    malformed.
    """
    dims = parse_dims(entry.get("dims", ()))
    inputs, params, outputs = (
        _specs(entry, kind, () if kind == "params" else dims)
        for kind in ("inputs", "params", "outputs")
    )
    ties = tuple(tuple(group) for group in entry.get("ties", ()))
    expect(all(isinstance(name, str) for group in ties for name in group), "ties")
    transform, by_kernel = (entry.get(name) for name in ("transform", "by_kernel"))
    expect(transform is None or isinstance(transform, str), "transform")
    expect(by_kernel is None or isinstance(by_kernel, str), "by_kernel")
    graph = entry.get("graph")
    expect(graph is None or set(map(type, graph.values())) == {str}, "graph")
    expect(graph is None or set(graph) == {"function", "results"}, "graph")
    expect(isinstance(entry["bare_output"], bool), "bare_output")
    any_address = entry.get("any_address", False)
    expect(isinstance(any_address, bool), "any_address")
    state = _state(entry, inputs, outputs)
    count = sum(trees.leaves(argument["tree"]) for argument in entry["arguments"])
    expect(count + len(state) == len(inputs), "arguments")
    expect(trees.leaves(entry["output_tree"]) + len(state) == len(outputs), "output_tree")
    fixed = dict(entry.get("fixed", {}))
    expect(all(isinstance(each, str | None) for each in fixed.values()), "fixed")
    unsaved = tuple(entry.get("unsaved", ()))
    expect(all(isinstance(name, str) for name in unsaved), "unsaved")
    in_place = tuple((int(output), int(number)) for output, number in entry.get("in_place", ()))
    pairs = [(outputs[o : o + 1], inputs[i : i + 1]) for o, i in in_place]
    expect(all(o and i and _is_like(*o, *i) for o, i in pairs), "in_place")
    return Function(
        inputs=inputs,
        params=params,
        outputs=outputs,
        ties=ties,
        arguments=entry["arguments"],
        output_tree=entry["output_tree"],
        bare_output=entry["bare_output"],
        transform=transform,
        by_kernel=by_kernel,
        graph=None if graph is None else GraphNames(**graph),
        any_address=any_address,
        dims=dims,
        sizes=Sizes(dims, [(spec.name, spec.shape) for spec in inputs]),
        state=state,
        fixed=fixed,
        unsaved=unsaved,
        in_place=in_place,
    )


def _is_like(one: ArraySpec, other: ArraySpec) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype)


def _specs(entry: Mapping[str, Any], kind: str, dims: Sequence[Dim]) -> tuple[ArraySpec, ...]:
    """Return the arrays of one kind. An output without a name gets the name `output.N`."""
    found = []
    for number, spec in enumerate(entry[kind]):
        name = spec["name"] if kind != "outputs" else spec.get("name", f"output.{number}")
        shape, dtype = parse_shape(spec["shape"], dims), spec["dtype"]
        expect(isinstance(dtype, str) and isinstance(name, str), kind)
        valid = parse_extents(spec["range"], dims) if "range" in spec else None
        expect(valid is None or len(valid) == 2, "range")
        found.append(ArraySpec(name, shape, dtype, valid))
    return tuple(found)


def _state(
    entry: Mapping[str, Any], inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec]
) -> tuple[ArraySpec, ...]:
    """Return the arrays of the state, under their names in the model."""
    names = entry.get("state", [])
    expect(all(isinstance(name, str) for name in names) and len(names) <= len(inputs), "state")
    found = tuple(
        replace(spec, name=name)
        for name, spec in zip(names, inputs[len(inputs) - len(names) :], strict=True)
    )
    new = outputs[len(outputs) - len(names) :]
    expect(all(map(_is_like, found, new)), "state")
    return found


def digest_of(array: Any) -> str:
    """Return the SHA-256 of a NumPy array's dtype, shape and elements."""
    head = f"{array.dtype}{list(array.shape)}".encode()
    return hashlib.sha256(head + array.tobytes()).hexdigest()


def expect(condition: bool, what: str) -> None:
    """Raise ValueError naming `what` unless the condition holds."""
    if not condition:
        raise ValueError(what)
