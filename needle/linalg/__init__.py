"""Linear algebra: NumPy's linalg on Tensors, with gradients of any order.

NumPy (LAPACK) computes these functions on the host, in eager code. Tracing one raises an error that
names it, except for `matrix_power` and those norms that are composed of ops. Matrices are the last
two axes; leading axes are a batch.
"""

import inspect

from ..common.keywords import name_functions
from ..errors import LinAlgError
from ._derived import Lstsq, Slogdet, det, lstsq, matrix_power, norm, pinv, slogdet
from ._factors import QR, SVD, Eigh, cholesky, eigh, eigvalsh, qr, svd, svdvals
from ._systems import inv, solve

__all__ = [
    "QR",
    "SVD",
    "Eigh",
    "LinAlgError",
    "Lstsq",
    "Slogdet",
    "cholesky",
    "det",
    "eigh",
    "eigvalsh",
    "inv",
    "lstsq",
    "matrix_power",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
]

globals().update(
    name_functions((n, globals()[n]) for n in __all__ if inspect.isfunction(globals()[n]))
)
