"""Graph passes of our own, one file each, with their preconditions on top."""
