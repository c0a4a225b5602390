"""Front ends: a model as a Relax module, its weights by name, and its eager reference.

- `model` traces a needle model and makes a `Source` (`source`); `loaded_models` does this for a
  model of `needle.torch` that has state.
- `translate` knows no op by name: an op's `emit_te` writes it as a tensor expression, or its `emit`
  as an operator that graph passes recognise. Both must give the shapes and dtypes of `infer`, and
  ops from outside needle must read their operands (`tir.reads`). Half precision is widened before
  an op and rounded after it, as in the eager kernels. Weights stay parameters, so new weights need
  no compilation.
- Dims become variables that inputs and op attributes share (`extents`). Each extent is written in a
  single form, so that TVM's passes see which extents are equal.
- `loops` lowers the bodies of an op that has bodies, each like a separate model, and combines their
  kernels into one function. Code for a GPU has no such loops: `unroll` unrolls them, except for
  layers with kernels in `kernels.recurrence.gpu.layers`.
- Inputs that are indices have a `range` in the manifest (`indices`); calls reject values outside
  it.
"""
