"""The native module (src/host/cpuid.cc), for type checkers; it may not be built."""

def cpuid(leaf: int, subleaf: int, /) -> tuple[int, int, int, int]:
    """EAX, EBX, ECX and EDX of x86's instruction; zeros for a leaf that there is not."""

def enabled() -> int:
    """The bits of x86's register XCR0: what the operating system saves; 0 if it saves nothing."""
