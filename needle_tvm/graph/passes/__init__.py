"""Graph passes that concern no single kernel: one file each, with preconditions on top."""
