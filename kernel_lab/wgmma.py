"""The matrix product on Hopper's own instructions, written by hand in TVM's `tirx`.

No schedule leads here: dlight and meta_schedule know the tensor cores of sm_80 alone, which reach
about two thirds of what sm_90a's `wgmma` does. The parts and why they are there:

- The tensor memory accelerator (TMA) copies tiles from global to shared memory by itself; one
  thread starts it. It swizzles as it copies: within 8 rows of 128 bytes, the 16 bytes at place j of
  row i go to place j xor i, so that no two rows that are read together meet in a bank. Beyond the
  edge of a matrix it reads zeros and writes nothing, so tiles need not fit.
- `wgmma` multiplies 64 x `columns` x 16 straight from shared memory, by four warps together, and
  runs on while they do something else. A is read along k; B, whose rows lie along n, transposed.
- A block has a producer, which only starts copies, and two consumers of four warps, 64 rows each.
  Registers go where the sums are (`setmaxnreg`). Two mbarriers for each stage of shared memory tell
  that it is full (the copy engine counts bytes) and empty (each consuming warp arrives).
- A persistent grid has as many blocks as the GPU has multiprocessors; the producer is loading the
  next tile while the consumers write out the last one, through shared memory, by the copy engine.
- A cluster of two blocks works on two tiles of the same columns: each loads half of B's tile and
  has it delivered to both.

PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions" and "Asynchronous
copy"; the division of labour is CUTLASS's warp-specialised kernel's. Designed by arithmetic and
run in emulation (tests/lab/asynchronous); not measured. Imports TVM's compiler.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kernel_lab.errors import LabUsageError
from needle_tvm._tvm.names import IRModule
from needle_tvm._tvm.names import tvmscript as T

ROWS, STEP = 128, 64  # of a block's tile, and of k in a stage: 64 halves are the 128 bytes swizzled
_CONSUMERS = 2
_ROW_BYTES = 2 * STEP
_BOX = STEP * _ROW_BYTES  # bytes of 64 rows of 64 halves: what lies together in a tile of B or C
_STAGING = 2  # boxes of a consumer's results on their way out
_SWIZZLE_128, _PROMOTE_256 = 3, 3  # as cuTensorMapEncodeTiled numbers them
_REGISTERS = (40, 232)  # of a thread that loads and one that sums: 128 * 40 + 256 * 232 <= 65536
_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
_STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
_PTX = {"float16": "f16", "bfloat16": "bf16"}


class Plan(NamedTuple):
    """The choices that rungs differ in.

    `columns` of a block's tile, 128 or 256; `stages` of shared memory, at least 2, since a stage is
    given back when the next one's products are under way; `blocks` of a persistent
    grid, None for a block for each tile; `cluster`, 1 or 2 blocks; `group`, how many rows of tiles
    blocks walk down before they go one column on, so that those at work share what is in the L2.
    """

    columns: int = 256
    stages: int = 4
    blocks: int | None = None
    cluster: int = 1
    group: int = 1

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage: a tile of A and one of B."""
        return (ROWS + self.columns) * _ROW_BYTES

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: stages, results on their way out, two barriers a stage."""
        return self.stages * (self.stage_bytes + 16) + _CONSUMERS * _STAGING * _BOX


def module(m: int, n: int, k: int, dtype: str, plan: Plan) -> IRModule:
    """C (m x n) = A (m x k) B (k x n), all row by row in `dtype`, "float16" or "bfloat16".

    Sums are float32 and rounded once. For sm_90a alone. Raises LabUsageError where a row is no
    multiple of 16 bytes, which is the copy engine's rule, and for a plan that does not work.
    """
    if k % 8 or n % 8:
        raise LabUsageError(f"wgmma: N={n}, K={k}: must be multiples of 8")
    if plan.stages < 2:
        raise LabUsageError(f"wgmma: stages={plan.stages}: must be at least 2")
    columns, stages, cluster, group = plan.columns, plan.stages, plan.cluster, plan.group
    steps, tile_columns = -(-k // STEP), -(-n // columns)
    tile_rows = -(-m // (ROWS * cluster))  # of all the blocks of a cluster together
    tiles = tile_rows * tile_columns
    clusters = tiles if plan.blocks is None else min(plan.blocks // cluster, tiles)
    stage_bytes, a_bytes = plan.stage_bytes, ROWS * _ROW_BYTES
    staging = stages * stage_bytes
    barriers = staging + _CONSUMERS * _STAGING * _BOX
    share = columns // 64 // cluster  # boxes of B that a block loads
    sums = columns // 2  # of a thread: 64 x columns by 128 threads
    load = _LOAD + ".multicast::cluster" * (cluster > 1)
    to_all = [T.uint16(2**cluster - 1)] * (cluster > 1)
    multiply = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{_PTX[dtype]}.{_PTX[dtype]}"
    round_pair = f"cvt.rn.{_PTX[dtype]}x2.f32"
    stmatrix = "stmatrix.sync.aligned.m8n8.x4.shared.b16"
    # Extents and bytes between rows, box, strides of elements, and interleave, swizzle, promotion.
    options = (1, 1, 0, _SWIZZLE_128, _PROMOTE_256, 0)
    a_box = (k, m, 2 * k, STEP, ROWS, *options)
    b_box = (n, k, 2 * n, 64, STEP, *options)
    c_box = (n, m, 2 * n, 64, 64, *options)

    def tile_of(number: Any) -> tuple[Any, Any]:
        """Row and column of a tile: down `group` rows, then the next column."""
        first = number // (group * tile_columns) * group
        high = group if tile_rows % group == 0 else T.min(group, tile_rows - first)
        within = number % (group * tile_columns)
        return first + within % high, within // high

    @T.inline
    def release(shared: Any, number: Any, lane: Any, peer: Any) -> None:
        """A warp's word to every block of the cluster that it has read a stage."""
        if lane < cluster:
            T.ptx.mapa.shared__cluster.u32(
                peer[0],
                T.cuda.cvta_generic_to_shared(shared.ptr_to([barriers + 8 + number % stages * 16])),
                T.Cast("uint32", lane),
            )
            T.ptx.mbarrier.arrive.shared__cluster.b64(peer[0])

    @T.prim_func
    def main(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (m, k), dtype, align=16)
        B = T.match_buffer(b, (k, n), dtype, align=16)
        C = T.match_buffer(c, (m, n), dtype, align=16)
        a_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        b_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        c_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        encode = T.meta_var("runtime.cuTensorMapEncodeTiled")
        T.call_packed(encode, a_map, dtype, 2, A.data, *a_box)
        T.call_packed(encode, b_map, dtype, 2, B.data, *b_box)
        T.call_packed(encode, c_map, dtype, 2, C.data, *c_box)
        T.device_entry()
        # setmaxnreg needs a limit that is known at the start.
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 1})
        rank = T.cta_id_in_cluster([cluster])
        block = T.cta_id([clusters * cluster])
        warpgroup = T.warpgroup_id([1 + _CONSUMERS])
        thread = T.thread_id([128 * (1 + _CONSUMERS)])
        lane = T.meta_var(thread % 32)
        shared = T.alloc_buffer((plan.shared_bytes,), "uint8", scope="shared.dyn", align=1024)
        C_own = T.alloc_buffer((sums,), "float32", scope="local")
        words = T.alloc_buffer((4,), "uint32", scope="local")
        peer = T.alloc_buffer((1,), "uint32", scope="local")
        tiles_at = T.alloc_buffer((2,), "uint64", scope="local")  # descriptors of A's and B's
        used: T.int32  # stages so far, of all tiles
        tile: T.int32

        if thread == 0:
            for s in T.unroll(stages):
                T.ptx.mbarrier.init.shared.b64(shared.ptr_to([barriers + 16 * s]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(
                    shared.ptr_to([barriers + 16 * s + 8]), T.uint32(4 * _CONSUMERS * cluster)
                )
            T.ptx.fence.mbarrier_init.release.cluster()
            T.ptx.fence.proxy.async_.shared__cta()
        if cluster > 1:
            T.cuda.cluster_sync()
        else:
            T.cuda.cta_sync()
        used = 0
        tile = block // cluster
        stage = T.meta_var(used % stages)
        full = T.meta_var(shared.ptr_to([barriers + 16 * stage]))
        empty = T.meta_var(shared.ptr_to([barriers + 16 * stage + 8]))
        turn = T.meta_var(used // stages % 2)
        row = T.meta_var((tile_of(tile)[0] * cluster + rank) * ROWS)
        column = T.meta_var(tile_of(tile)[1] * columns)
        if warpgroup == 0:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](_REGISTERS[0])
            if thread == 0:
                while tile < tiles:
                    for step in T.serial(steps):
                        T.cuda.mbarrier_wait(empty, turn ^ 1)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(full, T.uint32(stage_bytes))
                        T.ptx[_LOAD](
                            shared.ptr_to([stage * stage_bytes]),
                            T.address_of(a_map),
                            step * STEP,
                            row,
                            full,
                        )
                        for each in T.unroll(share):
                            box = T.meta_var(rank * share + each)
                            T.ptx[load](
                                shared.ptr_to([stage * stage_bytes + a_bytes + box * _BOX]),
                                T.address_of(b_map),
                                column + box * 64,
                                step * STEP,
                                full,
                                *to_all,
                            )
                        used = used + 1
                    tile = tile + clusters
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](_REGISTERS[1])
            consumer = T.meta_var(warpgroup - 1)
            out = T.meta_var(staging + consumer * (_STAGING * _BOX))
            warp = T.meta_var(thread // 32 % 4)
            # 8 rows of 128 bytes (of A, or of k in B) follow 8 after 1,024 bytes; 64 columns of B
            # follow 64 after a box.
            T.cuda.wgmma.encode_matrix_descriptor(
                T.address_of(tiles_at[0]), shared.ptr_to([consumer * _BOX]), 1, 64, _SWIZZLE_128
            )
            T.cuda.wgmma.encode_matrix_descriptor(
                T.address_of(tiles_at[1]), shared.ptr_to([a_bytes]), _BOX // 16, 64, _SWIZZLE_128
            )
            for i in T.unroll(sums):
                C_own[i] = T.float32(0)
            while tile < tiles:
                for step in T.serial(steps):
                    T.cuda.mbarrier_wait(full, turn)
                    first = T.meta_var(stage * (stage_bytes // 16))
                    T.ptx.wgmma.fence.sync.aligned()
                    for piece in T.unroll(STEP // 16):
                        # 16 of k are 32 bytes of A's rows, and 16 rows of 128 bytes of B.
                        T.ptx[multiply](
                            *[C_own[i] for i in range(sums)],
                            tiles_at[0] + T.Cast("uint64", first + piece * 2),
                            tiles_at[1] + T.Cast("uint64", first + piece * 128),
                            T.Or(step > 0, piece > 0),
                            1,
                            1,
                            0,
                            1,
                        )
                    T.ptx.wgmma.commit_group.sync.aligned()
                    # The products of the step before are done: its stage may be filled again.
                    T.ptx.wgmma.wait_group.sync.aligned(1)
                    if step > 0:
                        release(shared, used - 1, lane, peer)
                    used = used + 1
                T.ptx.wgmma.wait_group.sync.aligned(0)
                release(shared, used - 1, lane, peer)
                for part in T.unroll(columns // 64):
                    place = T.meta_var(out + part % _STAGING * _BOX)
                    if thread % 128 == 0:  # what was stored from here is read
                        T.ptx.cp.async_.bulk.wait_group.read(_STAGING - 1)
                    T.ptx.bar.sync(T.Cast("uint32", 1 + consumer), T.uint32(128))
                    for pair in T.unroll(4):
                        # Four matrices of 8 x 8: rows 0 and 8 of columns 0 and 8 of this pair.
                        for matrix in T.unroll(4):
                            own = T.meta_var(
                                part * 32 + pair * 8 + matrix // 2 * 4 + matrix % 2 * 2
                            )
                            T.ptx[round_pair](words[matrix], C_own[own + 1], C_own[own])
                        T.ptx[stmatrix](
                            shared.ptr_to(
                                [
                                    place
                                    + (warp * 16 + lane % 16) * _ROW_BYTES
                                    + ((pair * 2 + lane // 16) ^ (lane % 8)) * 16
                                ]
                            ),
                            *[words[i] for i in range(4)],
                        )
                    T.ptx.fence.proxy.async_.shared__cta()
                    T.ptx.bar.sync(T.Cast("uint32", 1 + consumer), T.uint32(128))
                    if thread % 128 == 0:
                        T.ptx[_STORE](
                            T.address_of(c_map),
                            column + part * 64,
                            row + consumer * 64,
                            shared.ptr_to([place]),
                        )
                        T.ptx.cp.async_.bulk.commit_group()
                tile = tile + clusters
            if thread % 128 == 0:
                T.ptx.cp.async_.bulk.wait_group.read(0)
        if cluster > 1:
            T.cuda.cluster_sync()  # nobody leaves while the other may still write to it

    return IRModule({"main": main})
