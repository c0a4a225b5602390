from .methods import TensorMethods as TensorMethods
from .methods import TupleMethods as TupleMethods
