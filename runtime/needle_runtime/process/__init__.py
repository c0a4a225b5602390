"""Processes: their limits, their children, and the files they write. This package imports neither
TVM nor needle.

`child` and `timing` run contestants in separate processes: thread pools of TVM and other libraries
slow each other down in a shared process, and a crash in one process must not end the others.
`command_line` is shared by all command lines.
"""
