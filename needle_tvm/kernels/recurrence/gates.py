"""Fuses a product of a state and a weight with the elementwise work on its gates into one kernel.

The columns of a recurrent weight give the pre-activations of a cell's gates, side by side. The next
state of a unit needs the pre-activations of all its gates. So a panel of the packed weight holds
all gates of the same units, and the cell's outputs are computed directly from a tile of sums in
registers. With separate kernels, the product would write all sums before the first sum is read, and
in a loop the threads would wait for each other between the two kernels.

`fuse_gates` finds such products in the body of a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from needle.autograd.shapes import Spec
from needle.op import Binary, Elementwise, Op
from needle.op.subgraph import Body, Step
from needle.ops.arithmetic import Where
from needle.ops.gru import GruGates
from needle.ops.matmul import Matmul
from needle.ops.recurrent import LstmGates
from needle.ops.slicing import Slice
from needle.ops.tuples import TupleGetItem
from needle.sizes.dims import bounds_of
from needle.sizes.extents import replaced
from needle_tvm._tvm.names import TE_NAMESPACE, Target, te, tirx, tvm
from needle_tvm.kernels.blocks import PARALLEL_WORK
from needle_tvm.kernels.variants import covers_best
from needle_tvm.target.info import target_info
from needle_tvm.tir import nests
from needle_tvm.tir.extents import exprs_of, extent_of, tiles_in
from needle_tvm.tir.functions import NODES, nodes_in, simplified, variables_of

_LOAD = tvm.ir.Op.get("te.tensor_load")
_MOST_GATES = 8
_SOME = 16  # rows that stand for a symbolic batch where its size makes no difference
_POINTWISE = (Elementwise, Binary, Where, Slice, LstmGates, GruGates, TupleGetItem)


@dataclass(frozen=True)
class GatesTile:
    """The register tile: all gates of `units` units for `rows` rows of the batch."""

    rows: int
    units: int
    is_parallel: bool  # whether there is enough work for more than one thread


def gates_tile(batch: int, hidden: int, dtype: str, target: Target, gates: int) -> GatesTile:
    """Return a tile of one vector of units and several rows, for a batch of at least one row.

    The sums of all rows stay in registers, alongside the gates' weights and a broadcast value.
    The number of rows is more than half of the most that fit. Of these numbers, it is the one that
    leaves the fewest rows of the last tile unused; of several such numbers, the largest.
    """
    most = min(batch, _most_rows(target, gates))
    rows = min(range(most, most // 2, -1), key=lambda each: -batch % each)
    units = target_info(target).lanes(dtype)
    # TVM removes a loop of one iteration, and rejects a region without a parallel loop.
    shared = target_info(target).cores > 1 and hidden > units
    return GatesTile(
        rows=rows,
        units=units,
        is_parallel=shared and batch * hidden * gates * hidden >= PARALLEL_WORK,
    )


def gates_tiles(
    least: int, most: int, hidden: int, dtype: str, target: Target, gates: int
) -> list[GatesTile]:
    """Return the tiles for a symbolic batch of `least` to `most` rows, fewest rows first. There are
    tiles of 1 and 2 rows for batches of this size; a larger batch uses the tile that covers it with
    the fewest spare rows."""
    largest = _most_rows(target, gates)
    rows = {1, 2, -(-largest // 2), -(-2 * largest // 3), largest}
    fitting = sorted(each for each in rows if each <= largest)
    useful = [each for each in fitting if least <= each] or [largest]
    # Once a tile holds the most rows, tiles of more rows are never picked.
    useful = useful[: next((at for at, each in enumerate(useful, 1) if each >= most), len(useful))]
    return [replace(gates_tile(most, hidden, dtype, target, gates), rows=each) for each in useful]


def _most_rows(target: Target, gates: int) -> int:
    registers = target_info(target).vectors.number
    return max(1, (registers - gates - 2) // gates)


def pack_gates(w: te.Tensor, gates: int, units: int) -> te.Tensor:
    """Pack a weight (K, gates * H) into panels (ceil(H / units), K, gates, units), with zeros past
    the last unit."""
    inner, width = map(int, w.shape)
    hidden = width // gates

    def element(panel: Any, row: Any, gate: Any, lane: Any) -> Any:
        unit = panel * units + lane
        value = w[row, gate * hidden + unit]
        if hidden % units == 0:
            return value
        return tirx.if_then_else(unit < hidden, value, tirx.const(0, w.dtype))

    shape = -(-hidden // units), inner, gates, units
    return te.compute(shape, element, name="pack_gates")


@dataclass(frozen=True, eq=False)
class PackGates(Op):
    """The op that packs a recurrent weight by gates, with `pack_gates`."""

    units: int
    gates: int

    name = "pack_gates"
    opaque = True

    def infer(self, w: Spec) -> Spec:
        inner, width = w.shape
        units = width // self.gates
        return Spec((-(-units // self.units), inner, self.gates, self.units), w.dtype, w.device)

    def emit_te(self, k: Any, w: Any) -> Any:
        return pack_gates(w, self.gates, self.units)


@dataclass(frozen=True, eq=False)
class GatedProduct(Op):
    """Computes a cell's outputs from the sums h @ w (B, gates * H) and from other values.

    The inputs are h (B, K), the panels of w, and the other values. The result is a tuple of values
    of shape (B, H) or (B, gates * H)."""

    cell: Body  # its inputs are the sums and the other values
    gates: int
    tiles: tuple[GatesTile, ...]

    name = "gated_product"
    opaque = scheduled = True

    def infer(self, h: Spec, panels: Spec, *others: Spec) -> tuple[Spec, ...]:
        return tuple([Spec(s.shape, s.dtype, h.device) for s in self.cell.output_specs()])

    def emit_te(self, k: Any, h: Any, panels: Any, *others: Any) -> tuple[Any, ...]:
        writer = _Cell(self.cell, h, panels, others)

        def body(ins: list[Any], outs: list[Any]) -> Any:
            return TE_NAMESPACE.statements(lambda s: writer.write(s, self.tiles, ins, outs))

        inputs = [h, panels, *others]
        shapes = [list(each.shape) for each in writer.outputs]
        # Without offsets (`layout=None`), a loop can place the buffers in its own memory.
        outputs = te.extern(
            shapes,
            inputs,
            body,
            dtype=[each.dtype for each in writer.outputs],
            in_buffers=[tirx.decl_buffer(x.shape, x.dtype, layout=None) for x in inputs],
            out_buffers=[tirx.decl_buffer(x.shape, x.dtype, layout=None) for x in writer.outputs],
            name="gated_product",
        )
        return tuple(outputs) if isinstance(outputs, Sequence) else (outputs,)


class _Cell:
    """Writes the kernel of a GatedProduct with TVM's statement builder.

    A unit's outputs are expressions of variables. Each variable stands for a sum, an operand's
    element, or a kept value; each tile substitutes its own values.
    """

    def __init__(self, cell: Body, h: Any, panels: Any, others: Sequence[Any]) -> None:
        self._batch, self._inner = h.shape
        self._gates = int(panels.shape[2])
        width = cell.inputs[0].shape[1]
        self._hidden = int(width) // self._gates
        self._dtype = str(h.dtype)
        self._row, self._unit = (tirx.Var(name, "int64") for name in ("row", "unit"))
        self._sums = [tirx.Var(f"sum{gate}", self._dtype) for gate in range(self._gates)]
        self._elements: dict[str, _Element] = {}  # by operand and indices
        self._known: dict[Any, Any] = {}  # the variables of kept values, by tensor
        self.fits = True  # whether all outputs can be computed unit by unit
        self._whole = te.placeholder((self._batch, width), h.dtype, name="sums")
        self._others = [te.placeholder(each.shape, each.dtype, name="other") for each in others]
        self.outputs = cell.evaluated([self._whole, *self._others], _emitted)
        self._kept = []
        for tensor in _kept(self.outputs, (self._batch, self._hidden)):
            value = self._value(tensor, [self._row, self._unit])
            variable = tirx.Var("kept", str(tensor.dtype))
            self._known[_key(tensor)] = variable
            self._kept.append((variable, value))
        self._results = [
            [self._value(x, [self._row, gate * self._hidden + self._unit]) for gate in self._of(x)]
            for x in self.outputs
        ]

    def _of(self, tensor: Any) -> range:
        """Return the numbers of the gates for which an output has elements."""
        return range(int(tensor.shape[1]) // self._hidden)

    def _value(self, tensor: Any, indices: Sequence[Any]) -> Any:
        """Return the element of a tensor at `indices`, as an expression of the variables."""
        key = _key(tensor)
        if key in self._known:
            return self._known[key]
        if key == _key(self._whole):
            gate = simplified(tirx.floordiv(simplified(indices[1] - self._unit), self._hidden))
            rest = simplified(indices[1] - self._unit - gate * self._hidden)
            if not isinstance(gate, tirx.IntImm) or not _is_zero(rest):
                self.fits = False  # an exception would be replaced by another one in TVM's code
                return tirx.const(0, self._dtype)
            return self._sums[int(gate)]
        if isinstance(tensor.op, te.PlaceholderOp):
            number = next(n for n, each in enumerate(self._others) if _key(each) == key)
            at = tuple(map(simplified, indices))
            variable = tirx.Var("element", str(tensor.dtype))
            made = _Element(variable, number, at, any(self._unit in variables_of(i) for i in at))
            return self._elements.setdefault(f"{number} {list(at)}", made).variable
        if not isinstance(tensor.op, te.ComputeOp) or tensor.op.reduce_axis:
            self.fits = False
            return tirx.const(0, str(tensor.dtype))
        axes = {axis.var: index for axis, index in zip(tensor.op.axis, indices, strict=True)}
        body = nests.substitute(tensor.op.body[tensor.value_index], axes)

        def load(call: Any) -> Any:
            return self._value(call.args[0], call.args[1:]) if call.op == _LOAD else call

        return nests.map_nodes(body, NODES.call, load)

    def write(
        self, s: Any, tiles: Sequence[GatesTile], ins: Sequence[Any], outs: Sequence[Any]
    ) -> None:
        """Write the kernel, whose code picks one of `tiles` (fewest rows first) by batch size."""
        tile, *rest = tiles
        if not rest:
            self._tiles(s, tile, ins, outs)
            return
        largest = rest[-1].rows
        among = [each.rows for each in rest] if 2 * tile.rows >= largest else []
        with s.If(covers_best(self._batch, tile.rows, largest, among)):
            with s.Then():
                self._tiles(s, tile, ins, outs)
            with s.Else():
                self.write(s, rest, ins, outs)

    def _tiles(self, s: Any, tile: GatesTile, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        loop = s.parallel if tile.is_parallel else s.serial
        (blocks,) = exprs_of([tiles_in(extent_of(self._batch), tile.rows)[0]])
        # One loop over all tiles: they spread over threads more evenly than a few panels would.
        with loop(0, -(-self._hidden // tile.units) * blocks) as number:
            panel, block = tirx.floordiv(number, blocks), tirx.floormod(number, blocks)
            rows = [tirx.min(block * tile.rows + r, self._batch - 1) for r in range(tile.rows)]
            sums = s.alloc_buffer((tile.rows, self._gates, tile.units), self._dtype, scope="local")
            self._multiply(s, tile, sums, panel, rows, *ins[:2])
            whole, rest = divmod(self._hidden, tile.units)
            given = s, tile, sums, panel, rows, ins[2:], outs
            if not rest:
                self._cell(*given, tile.units)
            else:
                with s.If(panel < whole):
                    with s.Then():
                        self._cell(*given, tile.units)
                    with s.Else():
                        self._cell(*given, rest)

    def _multiply(
        self, s: Any, tile: GatesTile, sums: Any, panel: Any, rows: Sequence[Any], h: Any, w: Any
    ) -> None:
        lines = [(r, row, gate) for r, row in enumerate(rows) for gate in range(self._gates)]
        with s.vectorized(0, tile.units) as lane:
            for r, _, gate in lines:
                s.buffer_store(sums, tirx.const(0, self._dtype), [r, gate, lane])
        with s.serial(0, self._inner) as k, s.vectorized(0, tile.units) as lane:
            for r, row, gate in lines:
                product = h[row, k] * w[panel, k, gate, lane]
                s.buffer_store(sums, sums[r, gate, lane] + product, [r, gate, lane])

    def _cell(
        self,
        s: Any,
        tile: GatesTile,
        sums: Any,
        panel: Any,
        rows: Sequence[Any],
        others: Sequence[Any],
        outs: Sequence[Any],
        count: int,
    ) -> None:
        """Write the cell's outputs for a tile's sums and `count` units of the panel."""
        units = tile.units

        def local(*shape: int) -> Any:
            return s.alloc_buffer((len(rows), *shape, units), self._dtype, scope="local")

        def read(element: _Element, row: Any, lane: Any) -> Any:
            at = {self._row: row, self._unit: panel * units + lane}
            return others[element.operand][tuple(nests.substitute(i, at) for i in element.at)]

        # If the last panel is not full, its operands are loaded one by one: a vector would read
        # past the last unit, perhaps outside the buffer.
        staged = [e for e in self._elements.values() if e.by_unit] if count < units else []
        staging: Any = local(len(staged)) if staged else None
        if staged:
            with s.serial(0, count) as lane:
                for r, row in enumerate(rows):
                    for number, element in enumerate(staged):
                        s.buffer_store(staging, read(element, row, lane), [r, number, lane])
        kept: dict[Any, Any] = {}

        def placed(value: Any, r: int, lane: Any) -> Any:
            found = {variable: sums[r, gate, lane] for gate, variable in enumerate(self._sums)}
            found |= {variable: buffer[r, lane] for variable, buffer in kept.items()}
            for element in self._elements.values():
                if element in staged:
                    found[element.variable] = staging[r, staged.index(element), lane]
                else:
                    found[element.variable] = read(element, rows[r], lane)
            return nests.substitute(value, found)

        for variable, value in self._kept:
            buffer = local()
            with s.vectorized(0, units) as lane:
                for r in range(len(rows)):
                    s.buffer_store(buffer, placed(value, r, lane), [r, lane])
            kept[variable] = buffer
        for values, out in zip(self._results, outs, strict=True):
            for gate, value in enumerate(values):
                first = gate * self._hidden + panel * units
                if count == units:
                    with s.vectorized(0, units) as lane:
                        for r, row in enumerate(rows):
                            s.buffer_store(out, placed(value, r, lane), [row, first + lane])
                    continue
                buffer = local()
                with s.vectorized(0, units) as lane:
                    for r in range(len(rows)):
                        s.buffer_store(buffer, placed(value, r, lane), [r, lane])
                with s.serial(0, count) as lane:
                    for r, row in enumerate(rows):
                        s.buffer_store(out, buffer[r, lane], [row, first + lane])


@dataclass(frozen=True, eq=False)
class _Element:
    """An element of an operand: its variable, the operand's number, its indices, and whether they
    depend on the unit."""

    variable: Any
    operand: int
    at: tuple[Any, ...]
    by_unit: bool


def _key(tensor: Any) -> Any:
    # `==` on tensors builds an expression, so their ops and output numbers are compared instead.
    return tensor.op, int(tensor.value_index)


def _is_zero(expr: Any) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == 0


def _emitted(op: Op, given: tuple[Any, ...]) -> Any:
    return op.compute(*given) if op.structural else op.emit_te(TE_NAMESPACE, *given)


def _kept(outputs: Sequence[Any], shape: Sequence[Any]) -> list[Any]:
    """Return the values with one element per unit that several other values read, in the order of
    their computation. The kernel computes each of them only once."""
    order: dict[Any, Any] = {}
    readers: dict[Any, int] = {}

    def visit(tensor: Any) -> None:
        readers[_key(tensor)] = readers.get(_key(tensor), 0) + 1
        if _key(tensor) in order:
            return
        if isinstance(tensor.op, te.ComputeOp):
            for body in tensor.op.body:
                for call in nodes_in(body, NODES.call):
                    if call.op == _LOAD:
                        visit(call.args[0])
        order[_key(tensor)] = tensor

    for tensor in outputs:
        visit(tensor)
    return [
        tensor
        for key, tensor in order.items()
        if readers[key] > 1
        and isinstance(tensor.op, te.ComputeOp)
        and len(tensor.shape) == 2
        and all(map(_same, tensor.shape, shape))
    ]


def fuse_gates(body: Body, states: int, constant: int, target: Target) -> Body:
    """Return the body with each product that fits replaced by a GatedProduct.

    Such a product multiplies a value by a constant input (from number `constant` on) whose columns
    form two or more gates. It is fused with the pointwise steps that lead from it to values of one
    gate's shape. All these values must have the product's dtype, since values of other dtypes would
    have to be widened and rounded as `translate` does."""
    number = len(body.inputs)
    while number < body.count:
        found = _cluster(body, number, constant)
        fused = None if found is None else _fused(body, number, *found, target)
        if fused is None:
            number += 1
        else:
            body, number = fused
    return body


def _cluster(body: Body, product: int, constant: int) -> tuple[set[int], int] | None:
    """Return the steps to fuse with a product, and the number of gates."""
    steps, specs = dict(body.numbered()), body.specs()
    step = steps[product]
    if not isinstance(step.op, Matmul):
        return None
    h, w = (specs[i] for i in step.inputs)
    if len(h.shape) != 2 or len(w.shape) != 2 or not constant <= step.inputs[1] < len(body.inputs):
        return None
    if h.dtype != w.dtype or h.dtype not in ("float32", "float64"):
        return None
    if 0 in h.shape or 0 in w.shape:
        return None
    if not all(isinstance(n, int) for n in w.shape):
        return None
    inside: set[int] = {product}
    outside: set[int] = set()
    for number in range(product + 1, body.count):
        reads = steps[number].inputs
        if outside.intersection(reads):
            outside.add(number)
        elif inside.intersection(reads):
            fits = isinstance(steps[number].op, _POINTWISE) and all(
                part.dtype == h.dtype
                for value in (number, *reads)
                for part in (specs[value] if type(specs[value]) is tuple else (specs[value],))
            )
            (inside if fits else outside).add(number)
    used = _leaving(body, inside)
    widths = {specs[n].shape[-1] for n in used if n != product and _is_matrix(specs[n], h)}
    if not widths or not all(_is_matrix(specs[n], h) for n in used):
        return None
    hidden = min(widths)
    if not isinstance(hidden, int) or hidden < 1 or w.shape[1] % hidden:
        return None
    gates = w.shape[1] // hidden
    if not 1 < gates <= _MOST_GATES or any(n not in (hidden, w.shape[1]) for n in widths):
        return None
    return inside, gates


def _is_matrix(spec: Any, h: Spec) -> bool:
    return (
        isinstance(spec, Spec)
        and len(spec.shape) == 2
        and spec.shape[0] == h.shape[0]
        and spec.dtype == h.dtype
    )


def _leaving(body: Body, inside: set[int]) -> list[int]:
    """Return the steps in a set whose values other steps read or the body returns."""
    read = set(body.outputs)
    for number, step in body.numbered():
        if number not in inside:
            read.update(step.inputs)
    return sorted(inside & read)


def _fused(
    body: Body, product: int, inside: set[int], gates: int, target: Target
) -> tuple[Body, int] | None:
    """Fuse a cluster; return the new body and the number of the next step to examine. Return None
    if the cluster cannot be computed unit by unit."""
    steps, specs = dict(body.numbered()), body.specs()
    outputs = _leaving(body, inside)
    h, w = steps[product].inputs
    others = sorted({i for n in inside - {product} for i in steps[n].inputs} - inside)
    cell = body.cut([product, *others], outputs)
    hidden = specs[w].shape[1] // gates
    batch, dtype = specs[h].shape[0], specs[h].dtype
    if isinstance(batch, int):
        tiles = [gates_tile(batch, hidden, dtype, target, gates)]
    else:
        least, most = bounds_of(batch)
        tiles = gates_tiles(least, most or 1 << 20, hidden, dtype, target, gates)
    units = tiles[0].units
    made = GatedProduct(cell, gates, tuple(tiles))
    if not _is_of_units(cell, (specs[h].shape[1], gates, units), dtype):
        return None
    # Steps that do not depend on the product come before the cluster, which may read their values.
    kept = [n for n, _ in body.numbered() if n not in inside]
    place = {n: n for n in range(len(body.inputs))}
    result: list[Step] = []

    def add(step: Step) -> int:
        result.append(step)
        return len(body.inputs) + len(result) - 1

    later = body.reached([product])
    for n in sorted([*kept, product], key=lambda n: (n in later, n)):
        if n == product:
            packed = add(Step(PackGates(units, gates), (w,)))
            whole = add(Step(made, (place[h], packed, *[place[i] for i in others])))
            for index, value in enumerate(outputs):
                place[value] = add(Step(TupleGetItem(index), (whole,)))
            following = len(body.inputs) + len(result)
        else:
            place[n] = add(Step(steps[n].op, tuple([place[i] for i in steps[n].inputs])))
    return Body(body.inputs, tuple(result), tuple([place[n] for n in body.outputs])), following


def _is_of_units(cell: Body, sizes: tuple[int, int, int], dtype: str) -> bool:
    """Return whether all outputs of a cell can be computed unit by unit."""
    cell = replaced(cell, lambda extent: _SOME)  # a symbolic batch becomes a number
    inner, gates, units = sizes
    h = te.placeholder((cell.inputs[0].shape[0], inner), dtype)
    panels = te.placeholder((1, inner, gates, units), dtype)
    others = [te.placeholder(spec.shape, spec.dtype) for spec in cell.inputs[1:]]
    return _Cell(cell, h, panels, others).fits


def _same(one: Any, other: Any) -> bool:
    """Return whether two extents are equal; equal symbolic extents have equal strings."""
    one, other = extent_of(one), extent_of(other)
    return str(one) == str(other)
