"""Front ends: a model as a Relax module, its weights by name, and its eager reference."""
