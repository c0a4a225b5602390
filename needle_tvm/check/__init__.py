"""Check that compiled code computes the model's results: parity of the stages, random programs.

`parity` compares each stage with the eager model computed in float64 and names the first op that
differs. `campaign` does the same for programs drawn at random, in separate processes;
docs/campaign.md describes how to run it.
"""
