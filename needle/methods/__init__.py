"""The methods and operators of Tensor, which call ops.

The class Tensor is defined before the ops, so `binding` binds these methods to it after all ops are
defined. `indexed_update` implements `x.at[key].set(value)`.
"""

from . import binding as binding
