"""Data-parallel training: each process (rank) works on some of the rows of every batch, and MPI
sums the gradients.

`mpiexec -n 4 python train.py` runs four ranks of a script. Add these lines to a script for one
process:

    group = ndl.distributed.init()
    model = group.data_parallel(model)
    loader = group.split(loader)

The losses then equal those of one process, up to rounding. The loader makes the same batches and
cuts each into one part per rank, each row gets the same random numbers as in one process, and each
rank's gradients are weighted by its share of the rows. The package needs the extra `mpi`.

Every joint action of the ranks begins with a meeting, in which each rank says what it is about to
do. If the ranks are about to do different things, they raise an error; with MPI alone they would
wait forever.
"""

from .group import Group, init

__all__ = ["Group", "init"]
