"""Puts a model and all libraries that it needs into one folder, for programs in C and C++.

`elf` reads what a library needs, `libraries` finds the libraries, and `making` writes the folder.
"""
