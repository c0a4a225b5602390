"""Convolutions as graph passes meet them: NHWC images, HWIO weights."""

from typing import Any

from needle_tvm._tvm.names import relax, tirx
from tests.needle_tvm.modules import Spec


def conv(x: Any, w: Any, padding: Any = 1, **options: Any) -> Any:
    """conv2d, padded by one zero on all sides unless said otherwise."""
    options = {"data_layout": "NHWC", "kernel_layout": "HWIO", "padding": padding, **options}
    return relax.op.nn.conv2d(x, w, **options)


def planes_first(x: Any, w: Any) -> Any:
    """The same in other layouts, which no pass takes."""
    return conv(x, w, data_layout="NCHW", kernel_layout="OIHW")


N = tirx.Var("n", "int64")  # an extent that is not static
OF_PLANES = Spec(2, 16, 7, 7), Spec(16, 16, 3, 3)
