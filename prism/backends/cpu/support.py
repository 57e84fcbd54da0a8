"""Finds the C++ compiler, compiles, remembers. Standard library only: this text is pasted into emitted modules."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

FLAGS = ("-std=c++17", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
# How the source of a launch begins after the support code: its function, and the constants that it is compiled for.
NAMES = "// launch: "
# What launches declare.
DECLARED = re.compile(r"\b(?:auto|bool|char|float|void|\w+_t|b?f16)\b[*&]* (?:const |__restrict )*(?!const\b|__)(\w+)")
# How a source says which matrix products it calls: each has a source of its own, in the same folder.
PRODUCTS = "// products: "
# How compilers say that it was the linker who failed.
LINKERS = ("ld returned", "linker command failed")
# What a compiler is asked for that takes too long: products and sums are still made one instruction.
LESS = ("-O1", "-fexpensive-optimizations")
# After how many seconds a folder that something was compiled in is what a process left that was killed: each run of a
# compiler begins with a file in it, and is ended after two minutes.
LEFT_S = 600.0
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


def included_by(main: Path) -> list[Path]:
    """The sources beside it that a C++ source includes."""
    lines = main.read_text(encoding="utf-8").splitlines()
    return [main.parent / line.split('"')[1] for line in lines if line.startswith('#include "')]


def sources_of(main: Path) -> list[Path]:
    """A C++ source and those of its own that it includes."""
    return [main, *(path for beside in included_by(main) for path in sources_of(beside))]


def products_in(text: str) -> list[str]:
    """The matrix products that a source calls, each once."""
    lines = [line[len(PRODUCTS) :] for line in text.splitlines() if line.startswith(PRODUCTS)]
    return sorted({name for line in lines for name in line.split()})


def nameless(text: str, kept: Sequence[str] = ()) -> str:
    """A launch's source with what it declares replaced by places: equal for sources that differ in names alone.

    Nothing that others define is replaced, so what is compiled of equal ones is the same. Names that are `kept` stay.
    """
    head, _, own = text.partition(NAMES)
    names = dict.fromkeys([*own.partition("\n")[0].split(), *DECLARED.findall(own)])
    places = {name: f"\0{n}" for n, name in enumerate(names) if name not in kept}
    places |= {f"PRISM_{name}": f"\0PRISM{place}" for name, place in places.items()}
    return head + re.sub(r"\w+", lambda word: places.get(word[0], word[0]), own)


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
        folders.append(Path(home) / "prism" / "cpp")  # as of prism itself, which may have compiled the same
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
    """A new folder in the first of these that can be written to; what killed processes left there goes."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for other in folder.glob(".making-*"):
                with suppress(OSError):
                    if time.time() - other.stat().st_mtime > LEFT_S:
                        shutil.rmtree(other, ignore_errors=True)
            return Path(tempfile.mkdtemp(prefix=".making-", dir=folder))
        except OSError:
            continue
    raise CompilerError(f"no folder to write compiled kernels to; tried {', '.join(map(str, folders))}")


def products_folders(main: Path) -> list[Path]:
    """Where compiled products go: modules share them, so not beside one of them if that can be."""
    return sorted(cache_folders(main), key=lambda folder: folder.name == "__cpp_cache__")


def compile_source(
    main: Path,
    constants: dict[str, int],
    timeout_s: float = 120.0,
    level: str = "-O3",
    folders: Sequence[Path] = (),
) -> tuple[Path, bool]:
    """Compile a C++ source for the values of its constants; returns the library's path, and whether it was there.

    Launches and matrix products are compiled apart, each once for all sources that hold or call it, and linked.

    Args:
        main: the source.
        constants: by name; known to the source as PRISM_<name>.
        timeout_s: for one run of the compiler; after a quarter of it in processor seconds, one that optimises too long
            is asked to optimise less. Other work on the machine makes no difference to that.
        level: how much it optimises.
        folders: where libraries may go, the best first, if not to those of `cache_folders`.

    Raises:
        CompilerError: there is no compiler, it takes too long, or none of the sets of flags works.
    """
    sources = sources_of(main)
    text = {path: path.read_text(encoding="utf-8") for path in sources}
    products = {name: path.with_name(f"{name}.cpp") for path in sources for name in products_in(text[path])}
    defines = [f"-DPRISM_{name}={int(value)}" for name, value in sorted(constants.items())]
    parts = [*(text[p] for p in sources), *(p.read_text(encoding="utf-8") for p in products.values())]
    folders = list(folders) or cache_folders(main)
    found, name = _known(main.stem, ".so", folders, *parts, *defines, level)
    if found is not None:
        return found, True
    own = (path for path in included_by(main) if NAMES in text[path])
    launches = [_Launch(path, text[path], constants, level) for path in own]
    todo = [*{x.stem: x for x in launches}.values(), *products.values()]

    def made(what: _Launch | Path) -> tuple[Path, bool]:
        if isinstance(what, Path):
            return compile_product(what, timeout_s)
        return _object(what.source, what.stem, what.parts, level, what.options, folders, timeout_s)

    with ThreadPoolExecutor(max(1, min(len(todo), os.cpu_count() or 1))) as several:
        objects = list(several.map(made, todo))
    linked = [str(path) for path, _ in objects]
    renamed = ["-DPRISM_APART", *(f"-D{x.called}={x.stem}" for x in launches)] if launches else []
    try:
        return _compiled(main, folders, name, timeout_s, level, ["-shared", *defines, *renamed], linked), False
    except CompilerError as error:
        if not any(known for _, known in objects) or not any(by in str(error) for by in LINKERS):
            raise
    for path in linked:  # one is damaged, as by a disk that was full
        Path(path).unlink(missing_ok=True)
    return compile_source(main, constants, timeout_s, level, folders)


class _Launch:
    """The source of a launch as it is compiled: `stem` is its function, called alike in all sources of this meaning."""

    def __init__(self, source: Path, text: str, constants: Mapping[str, int], level: str) -> None:
        names = text.partition(NAMES)[2].partition("\n")[0].split()
        own = {name: constants[name] for name in names if name in constants}
        self.source, self.called = source, names[0]
        self.parts = [nameless(text), *(str(constants.get(name, "")) for name in names), level]
        self.stem = f"launch_{hashlib.sha256(chr(0).join(self.parts).encode()).hexdigest()[:24]}"
        self.options = [f"-D{self.called}={self.stem}", *(f"-DPRISM_{name}={n}" for name, n in own.items())]


def compile_product(source: Path, timeout_s: float = 120.0) -> tuple[Path, bool]:
    """Compile the source of a matrix product; returns the object's path, and whether it was there.

    Raises:
        CompilerError: as for `compile_source`.
    """
    return _object(
        source, source.stem, [source.read_text(encoding="utf-8")], "-O3", [], products_folders(source), timeout_s
    )


def _object(
    source: Path,
    stem: str,
    parts: Sequence[str],
    level: str,
    options: Sequence[str],
    folders: list[Path],
    timeout_s: float,
) -> tuple[Path, bool]:
    """What is compiled of a source that others are linked with, and whether it was there; `parts` say what it is."""
    found, name = _known(stem, ".o", folders, *parts)
    if found is None:
        with _alone(folders, name):
            found, _ = _known(stem, ".o", folders, *parts)  # by another process, meanwhile
            if found is None:
                return _compiled(source, folders, name, timeout_s, level, ["-c", *options]), False
    return found, True


@contextmanager
def _alone(folders: list[Path], name: str) -> Iterator[None]:
    """While no other process, or thread, makes what has this name in these folders; where files can be locked."""
    file = None
    with suppress(ImportError, OSError):
        import fcntl

        folder = scratch_folder(folders)
        folder.rmdir()
        file = (folder.parent / f".{name}.lock").open("w", encoding="utf-8")
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if file is not None:
            Path(file.name).unlink(missing_ok=True)
            file.close()


def product_in(folders: list[Path], stem: str, text: str) -> tuple[Path | None, str]:
    """The object that was made of a product's source, if it was, and the name that it has in these folders."""
    return _known(stem, ".o", folders, text)


def _known(stem: str, ending: str, folders: list[Path], *parts: str) -> tuple[Path | None, str]:
    """What was compiled of these texts, if it was, and the name that it has."""
    text = "\0".join([*parts, machine(), str(find_compiler()), *FLAGS])
    name = f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:24]}{ending}"
    return next((folder / name for folder in folders if (folder / name).exists()), None), name


def _compiled(
    source: Path,
    folders: list[Path],
    name: str,
    timeout_s: float,
    level: str,
    options: list[str],
    objects: Sequence[str] = (),
) -> Path:
    """Compile a source into the first folder that can be written to, under this name."""
    compiler = find_compiler()
    if compiler is None:
        raise CompilerError(
            "no C++ compiler was found: these kernels are compiled on first use; install g++ or clang++ "
            "(Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install) or set CXX"
        )
    scratch = scratch_folder(folders)
    folder, made = scratch.parent, scratch / f"made{Path(name).suffix}"
    # A compiler that is killed leaves its temporary files: they are among those that go.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    said = ""
    # Optimisers take minutes over some small sources; what less makes of these is right, and there in seconds.
    efforts = {(level,): timeout_s * 3 / 4, LESS: timeout_s} if level != LESS[0] else {(level,): timeout_s}
    try:
        for tuning in TUNING:
            for effort, limit in efforts.items():
                command = [str(compiler), *effort, *FLAGS, *tuning, *options, str(source), *objects, "-o", str(made)]
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
                raise CompilerError(f"{compiler.name} took more than {timeout_s:g} s for {source.name}")
            if done.returncode == 0:
                os.replace(made, folder / name)  # atomic: another process may compile the same
                return folder / name
            said = said or done.stderr.strip()
            if "error:" in done.stderr and source.name.split(".")[0] in done.stderr:
                break
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    lines = [line for line in said.splitlines() if "error" in line] or said.splitlines()
    raise CompilerError(f"{compiler.name} refuses {source.name}: {'; '.join(lines[:3])[:600]}")
