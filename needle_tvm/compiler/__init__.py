"""`compile` and `compile_torch`: from a model to checked and cached code."""
