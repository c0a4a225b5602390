"""Pictures of traces: matplotlib figures, which `save` and `inline_svg` write, and HTML.

`cells` counts accesses in the cells of a raster, so that no access hides another.
`tests/kernel_lab/picture_checker.py` compares a picture's pixels and marks with its trace.
"""

from kernel_lab.diagrams.block_tiles import block_tiles
from kernel_lab.diagrams.locality import reuse_histogram
from kernel_lab.diagrams.sector_map import sector_map
from kernel_lab.diagrams.space_time import space_time
from kernel_lab.diagrams.stepwise import page, save_page, side_by_side, stepper
from kernel_lab.diagrams.style import inline_svg, save
from kernel_lab.diagrams.surface import surface
from kernel_lab.diagrams.warp import bank_view, warp_view

__all__ = [
    "bank_view",
    "block_tiles",
    "inline_svg",
    "page",
    "reuse_histogram",
    "save",
    "save_page",
    "sector_map",
    "side_by_side",
    "space_time",
    "stepper",
    "surface",
    "warp_view",
]
