"""Processes: their limits, their children, and the files they write. Imports neither TVM nor
needle.
"""
