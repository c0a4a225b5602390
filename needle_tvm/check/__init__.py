"""Whether compiled code computes what the model does: at each first compile, and on programs drawn
at random."""
