"""Relax modules: needle's legalisation of operators into loops, and tools for graph rewrites.

A pass states its preconditions at the top of its file. Its test has the module before, the expected
module, and for each precondition a module that breaks it.
"""
