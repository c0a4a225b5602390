"""Whether compiled code computes what a model does: parity of the stages, and random programs.

`parity` compares each stage with the eager model computed in float64 and names the first op that
differs. `campaign` does so for programs drawn at random, in separate processes; docs/campaign.md
tells how to run it.
"""
