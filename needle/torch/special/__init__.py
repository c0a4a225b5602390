"""Special functions of float64 Tensors, composed of needle's ops, for `converters/special.py`.

Unless another source is named, formulas are from Abramowitz and Stegun, "Handbook of Mathematical
Functions" (1964).
"""
