"""`compile` and `compile_torch`: from a model to code that has been checked and is kept."""
