"""Lowering of a PyTorch model's Relax module by stage. Imports TVM's compiler."""

from __future__ import annotations

from needle_tvm._tvm.names import IRModule, Target, transform
from needle_tvm.faults import blamed_on
from needle_tvm.frontend.torch.passes.conv1d_as_conv2d import conv1d_as_conv2d
from needle_tvm.frontend.torch.passes.conv3d_as_conv2d import conv3d_as_conv2d
from needle_tvm.frontend.torch.passes.conv_transpose import conv_transpose
from needle_tvm.frontend.torch.passes.norm_as_scale import norm_as_scale
from needle_tvm.frontend.torch.passes.plain_views import plain_views
from needle_tvm.graph import legalize
from needle_tvm.graph.passes.sink_views import sink_permutes, sink_units
from needle_tvm.lower import build
from needle_tvm.lower.variant import Variant
from needle_tvm.process.turns import in_turn

# Without an entry here, a transposed convolution would take the layout of its input, which neither
# TVM nor `frontend.torch.passes.conv_transpose` supports.
_LAYOUTS = {
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv2d_transpose": ["NCHW", "IOHW"],
}


@in_turn
def lowered(module: IRModule, target: Target, variant: Variant) -> IRModule:
    """The variant's module, after passes that prepare the front end's result for its pipeline."""
    with target, blamed_on("what prepares PyTorch's program"):
        if variant.stage == "tuned":
            for prepare in (norm_as_scale, plain_views):
                module = prepare(module, target)
            module = transform.DeadCodeElimination()(module)
            module = transform.DecomposeOpsForInference()(module)
            # The front end makes a view of a layer's input for each matmul that reads it.
            module = transform.EliminateCommonSubexpr()(module)
            module = transform.ConvertLayout(_LAYOUTS)(module)
            images = (conv1d_as_conv2d, conv3d_as_conv2d, conv_transpose)
            for prepare in (*images, sink_permutes, sink_units):
                module = prepare(module, target)
            module = transform.DeadCodeElimination()(module)
        elif variant.stage == "noopt":
            module = transform.LegalizeOps(legalize.RULES)(module)
    return build.lower_module(module, target, variant)
