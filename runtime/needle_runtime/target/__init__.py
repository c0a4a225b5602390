"""What compiled code needs from the machine that runs it: processor features, a GPU, cuBLAS.

`features` reads the processor's features, and `host` describes this machine; artifacts check the
features that they need.
"""
