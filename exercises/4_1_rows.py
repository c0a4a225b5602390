"""4.1: the most rows of a register tile that is two vectors wide, with 16 and with 32 registers."""

rows_of_16 = ...
rows_of_32 = ...


def check():
    for registers, rows in ((16, rows_of_16), (32, rows_of_32)):
        used = [2 * each + 2 + 1 for each in (rows, rows + 1)]
        text = f"{rows} rows need {used[0]} of {registers} registers"
        yield used[0] <= registers, text, "they do not fit"
        text = f"{rows + 1} rows would need {used[1]}"
        yield used[1] > registers, text, f"they fit into {registers} as well"
