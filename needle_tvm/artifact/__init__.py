"""Compiled models on disk: the folder, its manifest, its arrays, and the cache of them."""
