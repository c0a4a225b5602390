"""Models as the compiler takes them: a module, weights by name, an eager reference."""
