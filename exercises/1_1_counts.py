"""1.1: predict the loads and stores of a matrix product of 16 x 8 x 4 (M, N, K).

Replace each `...` by a number or a product of numbers: how often does the plain loop nest of lesson
1 load an element of A, how often does it run `T.init`, and how often does it store an element of C?
"""

from kernel_lab import show

loads_of_a = ...
starts = ...
stores_of_c = ...


def check():
    counted = show(lambda sch, case: None, size={"M": 16, "N": 8, "K": 4})
    stores = int(counted.trace.of_buffer("C").is_store.sum())
    reason = "count the iterations of the three loops"
    yield loads_of_a == counted.lines["A"], f"loads_of_a is {loads_of_a}", reason
    reason = "count the sums"
    yield starts == stores - counted.lines["B"], f"starts is {starts}", reason
    reason = "both the start of a sum and each of its iterations store"
    yield stores_of_c == stores, f"stores_of_c is {stores_of_c}", reason
