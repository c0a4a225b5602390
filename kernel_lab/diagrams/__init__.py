"""Pictures of traces, as matplotlib figures; `save` and `inline_svg` bring them out."""

from kernel_lab.diagrams.locality import reuse_histogram
from kernel_lab.diagrams.space_time import space_time
from kernel_lab.diagrams.stepwise import side_by_side, stepper
from kernel_lab.diagrams.style import inline_svg, save
from kernel_lab.diagrams.warp import bank_view, warp_view

__all__ = [
    "bank_view",
    "inline_svg",
    "reuse_histogram",
    "save",
    "side_by_side",
    "space_time",
    "stepper",
    "warp_view",
]
