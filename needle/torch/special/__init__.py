"""Special functions of float64 Tensors, composed of needle's ops, for `converters/special.py`.

Formulas are those of Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), where
nothing else is said.
"""
