"""Data-parallel training: each process (a rank) computes some rows of every batch, and MPI sums
the gradients.

`mpiexec -n 4 python train.py` runs four ranks of a script. What the script adds to that of one
process:

    group = ndl.distributed.init()
    model = group.data_parallel(model)
    loader = group.split(loader)

Losses are then, within rounding, those of one process: the loader takes the same batches and cuts
each into parts, one for each rank; random numbers are those of the whole batch; gradients are
weighted by the rows that they are of. Needs the extra `mpi`.

Whatever ranks do together begins with a meeting, in which each says what it is about to do. So
ranks that do different things end with an error, where MPI alone would let them wait for ever.
"""

from .group import Group, init

__all__ = ["Group", "init"]
