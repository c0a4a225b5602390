"""The commands of `python -m needle_tvm`. No other package imports them."""
