"""What a process may use, starts, and leaves on disk. Imports neither TVM nor needle."""
