"""Whether compiled code computes what a model does: parity of the stages, and random programs."""
