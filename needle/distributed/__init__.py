"""Data-parallel training: each process (a rank) computes some rows of every batch, and MPI sums
the gradients.

`mpiexec -n 4 python train.py` runs four ranks of a script. A script for one process needs these
further lines:

    group = ndl.distributed.init()
    model = group.data_parallel(model)
    loader = group.split(loader)

Losses then equal the losses of one process, up to rounding: the loader makes the same batches and
cuts each into one part per rank, each row gets the same random numbers as in one process, and
gradients are weighted by the number of rows behind them. The package needs the extra `mpi`.

Every joint action of the ranks begins with a meeting, in which each rank says what it is about to
do. So ranks that do different things end with an error; with MPI alone they would wait forever.
"""

from .group import Group, init

__all__ = ["Group", "init"]
