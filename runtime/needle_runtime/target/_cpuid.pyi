"""The native module (runtime/src/python/cpuid.cc), for type checkers; it may not be built."""

def cpuid(leaf: int, subleaf: int, /) -> tuple[int, int, int, int]:
    """Return EAX, EBX, ECX and EDX of x86's CPUID; zeros for a leaf that does not exist."""

def enabled() -> int:
    """Return x86's register XCR0: the state that the operating system saves; 0 if it saves none."""
