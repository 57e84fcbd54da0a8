"""The C++ that launches share, and matrix products as sources of their own; no more than reads files.

Children that compile start with this, and with nothing of what emits.
"""

from __future__ import annotations

from importlib.resources import files

_DEFINED = {
    "multiply": ("product", "tiles", "parts"),
    "multiply_halves": ("product", "tiles", "halves"),
    "multiply_bytes": ("product", "tiles", "bytes"),
    "multiply_window": ("product", "tiles", "parts", "window"),
}
"""The support code, besides what every launch has, that a product is made of."""


def support(*parts: str) -> str:
    """The support code, by the names of its parts."""
    folder = files("prism.backends.cpu") / "csrc"
    return "\n".join((folder / f"{part}.hpp").read_text(encoding="utf-8").rstrip("\n") for part in parts) + "\n"


HELD = "held"
"""What products know of memory that stays as it is, as a source of its own beside theirs."""


def product_source(name: str) -> str:
    """The source of a matrix product for all tile sizes.

    Args:
        name: the function, as `multiply`, and the C++ types of its operands, all but float32 ones of the first: parted
            by hyphens, as `multiply-f16` and `multiply_bytes-uint8_t-int8_t`. Of halves the first may be
            bfloat16, too. Or `HELD`.
    """
    if name == HELD:
        return (
            "// What a caller says of memory that stays as it is, written by prism.\n"
            + support("core", "calls")
            + 'extern "C" void hold(const void* first, int64_t bytes) { prism::v_hold(first, bytes); }\n'
            + 'extern "C" void forget(const void* first) { prism::v_forget(first); }\n'
        )
    function, *types = name.split("-")
    called = [f"{function}<{', '.join(types)}>"]
    if function == "multiply_halves":
        called.append(f"{function}<{', '.join(types)}, bf16>")
    made = [f"    __attribute__((used)) static auto* const made_{n} = &{c};\n" for n, c in enumerate(called)]
    return (
        f"// {' and '.join(called)} of calls.hpp as functions of their own, written by prism.\n"
        + support("core", "calls", *_DEFINED[function])
        + f"namespace prism {{\n{''.join(made)}}}\n"
    )
