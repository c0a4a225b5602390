"""TVM as it is installed: its names, its versions, its runtime library. Only `names` imports it."""
