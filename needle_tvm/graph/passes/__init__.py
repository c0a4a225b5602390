"""Graph passes that concern no single kernel: one file each, with preconditions at the top.

They copy results that alias inputs or weights, drop broadcasts, share layer norms of one tensor and
merge its matmuls (queries, keys and values), sink permutations and reshapes below elementwise
operators, and fold scales (batch norm) into weights. A kernel that only reshapes its operand
becomes a view.

TVM's simplifier applies integer rules, such as turning `(x + y) - y` into `x`; `keep_arithmetic`
hides the floating-point arithmetic that it would change. Two differences from eager results remain:
the compiler's fused multiply-add rounds `a * b + c` once instead of twice, and adding the number 0,
or multiplying by it, may lose the sign of a zero.
"""
