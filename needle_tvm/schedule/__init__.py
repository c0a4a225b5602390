"""Our own schedule rules: deterministic, no search."""
