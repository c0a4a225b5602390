"""An interrupt while a pass in Python runs inside TVM."""

import pytest

from needle_tvm._tvm.names import IRModule, module_pass, sequential
from needle_tvm.faults import blamed_on


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_a_pass_is_raised_as_itself(kind):
    def interrupted(module):
        raise kind

    with pytest.raises(kind), blamed_on("a pass"):
        sequential([module_pass(interrupted)])(IRModule())
