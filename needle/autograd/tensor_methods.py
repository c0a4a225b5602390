"""Base classes of Tensor and TensorTuple, which declare their methods to type checkers.

The methods call ops, which are defined after the class Tensor, so binding.py adds the methods to
the class. Type checkers read the signatures from `tensor_methods.pyi`, which `make format` writes.
"""


class TensorMethods:
    __slots__ = ()


class TupleMethods:
    __slots__ = ()
