"""The bases of Tensor and TensorTuple that carry their methods' types.

The methods call ops, which are defined after the class Tensor, so binding.py binds them to it. Type
checkers read their signatures from `tensor_methods.pyi`, which `make format` writes.
"""


class TensorMethods:
    __slots__ = ()


class TupleMethods:
    __slots__ = ()
