"""The needs of code on the machine that runs it: the processor's features, a GPU, cuBLAS.

`features` reads the processor's features, and `host` describes this machine; artifacts check the
features that they need.
"""
