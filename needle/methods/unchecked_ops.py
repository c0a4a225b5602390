"""The ops without keyword checks, for Tensor's methods, which check keywords themselves."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..ops import *  # noqa: F403
else:
    from ..ops import unchecked

    globals().update(vars(unchecked))
