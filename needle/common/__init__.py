"""Modules that know no tensor: a thread's state, keywords and names of arguments, trees, files, and
the line of a user's code that an error names."""
