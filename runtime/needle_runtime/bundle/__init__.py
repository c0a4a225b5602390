"""A model and all libraries that it needs in one folder, for programs in C and C++.

`elf` reads the needs of a library, `libraries` finds the library that meets each of them, and
`making` writes the folder.
"""
