"""Linear algebra: NumPy's linalg on Tensors, with gradients of any order.

NumPy (LAPACK) computes these functions on the host, in eager code. Tracing them raises an error,
except for `matrix_power` and the norms that are composed of ops. The last two axes hold the
matrices; leading axes are a batch.
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
