"""`python -m bench.cpu`: inference on the CPU, and measurements of a model besides its times.

It compares the models with the peers of `apps.peers`. Each contestant is called as its users call
it and, where possible, as code alone. It also measures kernels and costs, the gain of each pass and
rule (`ablation`), slow calls while other processes keep the cores busy (`tails`), eager and
compiled code in one process (`beside`), and artifacts for all sizes (`sizes`).
"""
