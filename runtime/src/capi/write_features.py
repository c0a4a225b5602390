"""Write features.inc, which the C library reads, from needle_runtime/target/features.py:

python runtime/src/capi/write_features.py
"""

from pathlib import Path

from needle_runtime.target.features import ARM, X86

FILE = Path(__file__).with_name("features.inc")


def text() -> str:
    """Return the file's text: a line for each feature."""
    lines = [
        "// Written from needle_runtime/target/features.py by write_features.py; do not edit.",
        *(
            f'NEEDLE_X86("{name}", {row.leaf[0]:#x}, {row.leaf[1]}, {row.register}, {row.bit}, '
            f"{row.saved:#x})"
            for name, row in X86.items()
        ),
        *(f'NEEDLE_ARM("{name}", {row.word}, {row.bit})' for name, row in ARM.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
