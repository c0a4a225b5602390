from typing import TYPE_CHECKING

if TYPE_CHECKING:  # mypy looks at such imports last, once it knows what ops are
    from ..methods.binding import TensorMethods as TensorMethods
    from ..methods.binding import TupleMethods as TupleMethods
