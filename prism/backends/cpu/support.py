"""Finds the C++ compiler, compiles, remembers. Standard library only: this text is pasted into emitted modules."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = ("-std=c++17", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
# Sources of launches that a compiler gets the whole limit for; of more it gets so much more.
MANY = 32
# How a source says which products it calls, each a function that may be compiled apart.
PRODUCTS = "// products: "
# The variable that names a folder with products that were compiled apart.
PRODUCTS_FOLDER = "PRISM_CPP_PRODUCTS"
# What a compiler is asked for that takes too long: products and sums are still made one instruction.
LESS = ("-O1", "-fexpensive-optimizations")
# What a compiler or machine may not have, the best first.
TUNING = (("-march=native", "-fopenmp"), ("-fopenmp",), ("-march=native",), ())


class CompilerError(RuntimeError):
    """There is no C++ compiler, or it refuses the source."""


def find_compiler() -> Path | None:
    """The C++ compiler: $CXX, c++, g++ or clang++; None when there is none."""
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return Path(found)
    return None


def sources_of(main: Path) -> str:
    """The text of a C++ source with those of its own that it includes."""
    text = main.read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith('#include "'):
            text += sources_of(main.parent / line.split('"')[1])
    return text


def products_in(text: str) -> list[str]:
    """The products that a source calls, each once."""
    lines = [line[len(PRODUCTS) :] for line in text.splitlines() if line.startswith(PRODUCTS)]
    return sorted({name for line in lines for name in line.split()})


def linked(text: str, folder: str) -> list[str]:
    """The objects in the folder that have all of a source's products; none where one of them is missing."""
    objects = [os.path.join(folder, f"{name}.o") for name in products_in(text)] if folder else []
    return objects if all(map(os.path.exists, objects)) else []


def machine() -> str:
    """What -march=native depends on: the processor's name and flags."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    kept = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return "\n".join(dict.fromkeys(kept))


def cache_folders(main: Path) -> list[Path]:
    """Where compiled libraries go: to $PRISM_CPP_CACHE, else beside the source, or to the user's cache if it cannot."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    spare = Path(tempfile.gettempdir()) / "prism-cpp"
    chosen = os.environ.get("PRISM_CPP_CACHE")
    folders = [*([Path(chosen)] if chosen else []), main.parent / "__cpp_cache__"]
    if os.path.isabs(home):  # without a home folder, "~" stays as it is
        folders.append(Path(home) / "prism-cpp")
    if not _of_another(spare):  # anybody may have made it, and libraries from it are loaded
        folders.append(spare)
    return folders


def _of_another(folder: Path) -> bool:
    """Whether the folder is another user's."""
    try:
        return hasattr(os, "getuid") and folder.lstat().st_uid != os.getuid()
    except OSError:
        return False


def scratch_folder(folders: list[Path]) -> Path:
    """A new folder in the first of these that can be written to."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=".making-", dir=folder))
        except OSError:
            continue
    raise CompilerError(f"no folder to write compiled kernels to; tried {', '.join(map(str, folders))}")


def compile_source(
    main: Path, constants: dict[str, int], timeout_s: float = 120.0, level: str = "-O3", products: str | None = None
) -> tuple[Path, bool]:
    """Compile a C++ source for the values of its constants; returns the library's path, and whether it was there.

    Args:
        main: the source.
        constants: by name; known to the source as PRISM_<name>.
        timeout_s: for the compiler, of up to MANY launches; after a quarter of it in processor seconds, one that
            optimises too long is asked to optimise less. Other work on the machine makes no difference to that.
        level: how much it optimises.
        products: a folder with products that are compiled apart and linked, $PRISM_CPP_PRODUCTS by default: a tuner
            compiles a source for many tile sizes, and its products, most of the work, do not depend on them.

    Raises:
        CompilerError: there is no compiler, it takes too long, or none of the sets of flags works.
    """
    defines = [f"-DPRISM_{name}={int(value)}" for name, value in sorted(constants.items())]
    compiler = find_compiler()
    text = sources_of(main)
    objects = linked(text, os.environ.get(PRODUCTS_FOLDER, "") if products is None else products)
    if objects:
        defines.append("-DPRISM_APART")
    key = hashlib.sha256(
        "\0".join([text, machine(), str(compiler), *defines, *objects, *FLAGS, level]).encode()
    ).hexdigest()[:24]
    folders = cache_folders(main)
    for folder in folders:
        if (folder / f"{main.stem}-{key}.so").exists():
            return folder / f"{main.stem}-{key}.so", True
    if compiler is None:
        raise CompilerError(
            "no C++ compiler was found: these kernels are compiled on first use; install g++ or clang++ "
            "(Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install) or set CXX"
        )
    scratch = scratch_folder(folders)
    folder, made = scratch.parent, scratch / "made.so"
    # A compiler that is killed leaves its temporary files: they are among those that go.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    said = ""
    launches = sum(line.startswith('#include "') for line in main.read_text(encoding="utf-8").splitlines())
    timeout_s *= max(1.0, launches / MANY)
    # Optimisers take minutes over some small sources; what less makes of these is right, and there in seconds.
    efforts = {(level,): timeout_s * 3 / 4, LESS: timeout_s} if level != LESS[0] else {(level,): timeout_s}
    try:
        for tuning in TUNING:
            for effort, limit in efforts.items():
                command = [str(compiler), *effort, *FLAGS, *tuning, *defines, str(main), *objects, "-o", str(made)]
                if effort != LESS and os.path.exists("/bin/sh"):
                    command = ["/bin/sh", "-c", 'ulimit -S -t "$0"; exec "$@"', str(int(timeout_s / 4) + 1), *command]
                try:
                    done = subprocess.run(
                        command, capture_output=True, text=True, timeout=limit, errors="replace", env=environment
                    )
                except subprocess.TimeoutExpired:
                    continue
                # A compiler that is out of time, or of memory, is ended by a signal, or a part of it is and it says so.
                if done.returncode >= 0 and not (done.returncode and "signal" in done.stderr):
                    break
            else:
                raise CompilerError(f"{compiler.name} took more than {timeout_s:g} s for {main.name}")
            if done.returncode == 0:
                # Atomic: another process may compile the same.
                os.replace(made, folder / f"{main.stem}-{key}.so")
                return folder / f"{main.stem}-{key}.so", False
            said = said or done.stderr.strip()
            if "error:" in done.stderr and main.name.split(".")[0] in done.stderr:
                break
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if objects and f"{main.name}:" not in said:  # the linker: an object is damaged, as by a disk that was full
        for path in objects:
            Path(path).unlink(missing_ok=True)
        return compile_source(main, constants, timeout_s, level, products="")
    lines = [line for line in said.splitlines() if "error" in line] or said.splitlines()
    raise CompilerError(f"{compiler.name} refuses {main.name}: {'; '.join(lines[:3])[:600]}")
