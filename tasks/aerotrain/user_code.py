"""The user's code: archives of its folder in the store, and the import of its modules.

All replicas run the code of one archive, which is named by the hash of its bytes: equal files give
the same archive, and readers verify the bytes. It has the modules that a pipeline names, those that
they import, and every file that is no module. So an edit of a module of another pipeline changes
nothing. What a model was trained with is less: the files that were imported.
"""

import ast
import gzip
import hashlib
import importlib
import io
import sys
import tarfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType, ModuleType
from weakref import WeakKeyDictionary

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.contract.layout import code_key
from aerotrain.store import MissingError, Store, checked_key, open_store

#: Patterns of files that are not packed.
_LEFT_OUT = ("__pycache__", ".*", "*.pyc")

#: What imports by names that are computed: a module with one of these may import any other.
_IMPORTS_ANY = {"importlib", "import_module", "__import__", "pkgutil", "runpy", "exec", "eval"}

#: The most bytes of an archive, packed or not: data belong in a data set.
LARGEST = 64 << 20

#: Seconds after which an archive that is used again is written again, so that retention, which
#: keeps all that was written within the last hour, does not remove it before its job is recorded.
_WRITTEN_AGAIN_AFTER = 1800.0

#: The hash of the file of each module of the user's, from its import on.
_IMPORTED: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()


def pack(folder: Path, names: Collection[str] = ()) -> bytes:
    """The folder as a reproducible tar archive: equal files give equal bytes.

    With ``names``, modules that neither are among them nor imported by one are left out.

    Raises:
        FinalError: it holds more than ``LARGEST`` bytes, or a link that leads out of it.
    """
    files = _used(folder, _files(folder), names)
    size = sum(path.stat().st_size for path in files)
    unpacked = io.BytesIO()
    if size <= LARGEST:
        with tarfile.open(fileobj=unpacked, mode="w") as archive:
            for path in files:
                entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
                content = path.read_bytes()
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    if max(size, unpacked.tell()) > LARGEST:
        largest = max(files, key=lambda path: path.stat().st_size)
        raise FinalError(
            f"the {len(files)} files of {folder} hold {size >> 20} MiB, and their archive may hold "
            f"{LARGEST >> 20}; the largest file is {largest.relative_to(folder)}: move data out of "
            "the folder"
        )
    return gzip.compress(unpacked.getvalue(), mtime=0)


def _files(folder: Path) -> list[Path]:
    """The files of a code folder.

    Raises:
        FinalError: one is a link that leads out of the folder.
    """
    found = [
        path
        for path in folder.rglob("*")
        if not any(
            fnmatch(part, each) for part in path.relative_to(folder).parts for each in _LEFT_OUT
        )
    ]
    top = folder.resolve()
    for path in found:
        target = path.resolve()
        if not target.is_relative_to(top):
            raise FinalError(
                f"{path} links to {target}, which is outside the code folder {folder}; put a copy "
                "there instead"
            )
    return sorted(filter(Path.is_file, found))


def _used(folder: Path, files: Sequence[Path], names: Collection[str]) -> Sequence[Path]:
    """The ``files`` that are no modules, and the modules of ``names`` with all that they import.

    All, if none of the names is a module of the folder, or if the source does not show what a
    module imports.
    """
    modules = {}
    for path in files:
        *parents, last = path.relative_to(folder).with_suffix("").parts
        if path.suffix == ".py":
            modules[".".join([*parents, *[last] * (last != "__init__")])] = path
    used, left = set[str](), [name for name in names if name in modules]
    while left:
        name = left.pop()
        if name in modules and name not in used:
            used.add(name)
            try:
                tree = ast.parse(modules[name].read_bytes())
            except (SyntaxError, ValueError, RecursionError):
                return files
            words = {
                getattr(node, field, None)
                for node in ast.walk(tree)
                for field in ("id", "attr", "name")
            }
            if words & _IMPORTS_ANY:
                return files
            is_package = modules[name].name == "__init__.py"
            left += _imports(tree, name if is_package else name.rpartition(".")[0], modules)
        if "." in name:
            left.append(name.rpartition(".")[0])
    kept = {modules[name] for name in used or modules}
    return [path for path in files if path.suffix != ".py" or path in kept]


def _imports(tree: ast.AST, package: str, modules: Collection[str]) -> Iterator[str]:
    """The names that a module of ``package`` may import, and the names of modules in its texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            within = parents[: len(parents) + 1 - node.level] if node.level else []
            base = ".".join(filter(None, [*within, node.module]))
            yield base
            for each in node.names:
                below = f"{base}." if base else ""
                if each.name == "*":
                    yield from (name for name in modules if name.startswith(below))
                yield f"{below}{each.name}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def hparams_of(folder: Path, name: str) -> dict[str, str]:
    """The keys of ``hparams`` that the source of the module ``name`` reads, with their defaults.

    The module is not imported, as that takes TensorFlow; so a key that it computes is missing.
    """
    try:
        tree = ast.parse(folder.joinpath(*name.split(".")).with_suffix(".py").read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(ast.Name("hparams"), ast.Constant(str(key))):
                found.setdefault(key, "")
            case ast.Call(ast.Attribute(ast.Name("hparams")), [ast.Constant(str(key)), *default]):
                found[key] = found.get(key) or "".join(map(ast.unparse, default))
    return dict(sorted(found.items()))


def code_of(name: str) -> dict[str, str]:
    """What of the user's code runs with the imported module ``name``: a hash of each file.

    These are the imported files in the folder from which it was imported, by their paths there. A
    hash is that of the import, even if the file has changed since.
    """
    folder, package = f"{_folder_of(name)}/", name.partition(".")[0]
    found = {}
    for each, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__") or ""
        # A folder may hold a virtual environment, or be that of all installed packages.
        if file.startswith(folder) and (
            "site-packages" not in file or each.partition(".")[0] == package
        ):
            if module not in _IMPORTED:
                _IMPORTED[module] = _hash_of(Path(file))
            found[file.removeprefix(folder)] = _IMPORTED[module]
    return dict(sorted(found.items()))


def changed_code(was: Mapping[str, str], name: str) -> list[str]:
    """The files of ``was``, the ``code_of`` an earlier process, that are others in this one."""
    return changed_files(was, _folder_of(name), code_of(name))


def changed_files(
    was: Mapping[str, str], folder: Path, imported: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """The files of ``was`` that are others in ``folder``; ``imported`` has hashes of some."""
    return [each for each in was if (imported.get(each) or _hash_of(folder / each)) != was[each]]


def _folder_of(name: str) -> Path:
    """The folder from which the module ``name`` was imported."""
    file = Path(getattr(sys.modules[name], "__file__", None) or name.replace(".", "/"))
    return file.parents[name.count(".") + (file.name == "__init__.py")]


def _hash_of(file: Path) -> str:
    """A hash of a Python file, without comments and formatting; of one that is gone, of ""."""
    content = file.read_bytes() if file.is_file() else b""
    with suppress(SyntaxError, ValueError, RecursionError):  # it is compiled, or nested too deeply
        content = ast.unparse(ast.parse(content)).encode()
    return hashlib.sha256(content).hexdigest()


def publish_code(store: Store, folder: Path, names: Collection[str] = ()) -> str:
    """Upload the archive of ``pack``, unless the store has a recent one, and return its URL."""
    packed = pack(folder, names)
    key = code_key(hashlib.sha256(packed).hexdigest())
    try:
        is_recent = time.time() - store.stat(key).modified < _WRITTEN_AGAIN_AFTER
    except MissingError:
        is_recent = False
    if not is_recent:
        store.put(key, packed)
    return f"{store.url}/{key}"


def fetch_code(url: str, folder: Path) -> Path:
    """Unpack the archive at ``url`` into ``folder``, and return ``folder``.

    Raises:
        TemporaryError: its bytes do not match the hash in its name.
        FinalError: it holds an entry that ``pack`` never writes, such as a link or ``../``, or more
            than ``LARGEST`` bytes.
    """
    prefix, _, name = url.rpartition("/")
    store = open_store(prefix)
    if store.stat(name).size > LARGEST:
        raise _too_large(url)
    packed = store.get(name)
    if f"{hashlib.sha256(packed).hexdigest()}.tar.gz" != name:
        raise TemporaryError(
            f"{url} does not match the hash in its name; it was damaged or overwritten"
        )
    # All at once, because the header of a single entry may already be too large.
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as zipped:
        unpacked = zipped.read(LARGEST + 1)
    if len(unpacked) > LARGEST:
        raise _too_large(url)
    # Entry by entry: the Python of Debian 12 has no filter for extractall.
    with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as archive:
        for entry in archive:
            path = folder / checked_key(entry.name)
            content = archive.extractfile(entry) if entry.isreg() else None
            if content is None:
                raise FinalError(f"{url} holds {entry.name}, which is not a file; pack it again")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
    return folder


def _too_large(url: str) -> FinalError:
    return FinalError(
        f"{url} holds more than the {LARGEST >> 20} MiB that an archive of code may hold; pack the "
        "code again, without data"
    )


def user_module(name: str, purpose: str) -> ModuleType:
    """Import the module ``name``, which is needed ``purpose``, such as ``"to read the data"``.

    Raises:
        FinalError: there is no such module.
        ModuleNotFoundError: the module imports another one that does not exist.
    """
    try:
        module = importlib.import_module(name)
        code_of(name)  # before anyone edits these files
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise FinalError(
            f"there is no module {name!r} {purpose}; check that the folder that holds it is "
            "the job's code folder (--code, by hand)"
        ) from error
    return module


def forget(name: str) -> None:
    """Let the module ``name``, and others of its folder, be imported as in a new process."""
    file = sys.modules[name].__file__
    for each, module in [*sys.modules.items()]:
        other = getattr(module, "__file__", None)
        if file and other and Path(other).parent == Path(file).parent:
            del sys.modules[each]
