"""The commands of `python -m needle_tvm`. Nothing imports them."""
