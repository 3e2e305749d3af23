"""What the package shows: names, docstrings, stubs, the reference, the program."""

import ast
import importlib.metadata
import os
import pathlib
import pkgutil
import signal
import subprocess
import sys

import ashlar
import ashlar._native
import pytest

PACKAGE = pathlib.Path(ashlar.__file__).parent
ROOT = pathlib.Path(__file__).resolve().parents[2]
PUBLIC = [name for name in ashlar.__all__ if not name.startswith("_")]


def is_public(name):
    return not name.startswith("_")


def stub():
    return ast.parse((PACKAGE / "_native.pyi").read_text())


def test_every_public_name_is_listed():
    assert list(ashlar.__all__) == sorted(set(ashlar.__all__), key=ashlar.__all__.index)
    hidden = [name for name in vars(ashlar._native) if is_public(name) and not hasattr(ashlar, name)]
    # Read, not imported: a module may need torch or vLLM.
    shown = {name for info in pkgutil.iter_modules([str(PACKAGE)]) if is_public(info.name)
             for node in ast.parse((PACKAGE / f"{info.name}.py").read_text()).body
             if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
             for name in ast.literal_eval(node.value)}
    assert set(hidden) <= shown, "native names that no module of the package lists"
    submodules = {info.name for info in pkgutil.iter_modules([str(PACKAGE)])}
    leaked = {name for name in vars(ashlar) if is_public(name)} - set(ashlar.__all__) - submodules
    assert not leaked


def test_every_public_name_has_a_docstring():
    silent = []
    for name in PUBLIC:
        value = getattr(ashlar, name)
        if isinstance(value, int):
            continue
        if not value.__doc__:
            silent.append(name)
        if not isinstance(value, type) or issubclass(value, BaseException):
            continue
        for member, what in vars(value).items():
            described = isinstance(what, (int, str, type)) or getattr(what, "__doc__", None)
            if is_public(member) and not described:
                silent.append(f"{name}.{member}")
    assert not silent


def test_the_stub_has_every_name_with_its_docstring():
    defined, silent = set(), []
    for node in stub().body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            defined.add(node.name)
            if not ast.get_docstring(node):
                silent.append(node.name)
        elif isinstance(node, ast.AnnAssign):
            defined.add(node.target.id)
        for member in getattr(node, "body", []):
            is_method = isinstance(member, ast.FunctionDef) and is_public(member.name)
            if is_method and not ast.get_docstring(member):
                silent.append(f"{node.name}.{member.name}")
    native = {name for name in PUBLIC if hasattr(ashlar._native, name)}
    assert native <= defined and not silent
    assert not [name for name in defined if not is_public(name) and name != "__version__"]


def test_the_stub_names_python_types_alone():
    text = (PACKAGE / "_native.pyi").read_text()
    assert "::" not in text and "std." not in text
    known = {node.name for node in stub().body if isinstance(node, ast.ClassDef)}
    known |= {alias.asname or alias.name.split(".")[0] for node in ast.walk(stub())
              if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names}
    known |= set(dir(__builtins__)) | set(__builtins__ if isinstance(__builtins__, dict) else ())
    unknown = set()
    for node in ast.walk(stub()):
        if not isinstance(node, (ast.FunctionDef, ast.arg)):
            continue
        annotation = node.returns if isinstance(node, ast.FunctionDef) else node.annotation
        if annotation is not None:
            unknown |= {part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)} - known
    assert not unknown


def test_the_package_is_typed_and_has_its_version():
    assert (PACKAGE / "py.typed").exists()
    assert ashlar.__version__ == importlib.metadata.version("ashlar")


def test_the_wheel_requires_what_it_imports():
    needed = [line for line in importlib.metadata.requires("ashlar") if "extra" not in line]
    assert [line.split()[0] for line in needed] == ["numpy"]


def test_the_reference_is_current():
    script = ROOT / "tools" / "python_reference.py"
    if not script.exists():
        pytest.skip("no source tree around the tests")
    done = subprocess.run([sys.executable, "-B", script, PACKAGE, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_classes_are_of_the_package():
    for name in PUBLIC:
        value = getattr(ashlar, name)
        if isinstance(value, type):
            assert value.__module__ == "ashlar", name


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_objects_that_were_never_made_are_refused():
    for name in PUBLIC:
        kind = getattr(ashlar, name)
        if not isinstance(kind, type) or issubclass(kind, BaseException):
            continue
        try:
            empty = kind.__new__(kind)
        except TypeError:
            continue
        for member in dir(kind):
            if member in ("__new__", "__class__", "__init__", "__setstate__", "__init_subclass__"):
                continue
            try:
                value = getattr(empty, member)
                if callable(value):
                    value()
            except Exception:  # noqa: S110, BLE001: any exception will do
                pass
        for reader in (memoryview, len, list):
            with pytest.raises(Exception):
                reader(empty)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_object_is_made_once():
    hashes = ashlar.SequenceHashes([ashlar.SequenceHash.root(1)])
    view = hashes.numpy()
    for again in (lambda: hashes.__init__([]), lambda: hashes.__setstate__(b"")):
        with pytest.raises(TypeError):
            again()
    assert view[0].tolist() == [ashlar.SequenceHash.root(1).hi, ashlar.SequenceHash.root(1).lo]


LEAVING = """
import ashlar, sys
manager = ashlar.BlockManager(8, 4)
blocks, single = manager.allocate(2), manager.allocate_block()
request = ashlar.RequestSequence(manager, range(10))
request.schedule_prefill(10)
signal = ashlar.FenceSignal()
request.set_written_after(signal.fence)
partial = manager.allocate_block().init_sequence()
partial.add_token(1)
inflight = partial.schedule().launch(signal.fence)
hasher = ashlar.SequenceHasher()
view = hasher.hash_blocks(range(64), 4).sequence.numpy()
kept = [manager, blocks, view]
kept.append(kept)
"""


def test_an_interpreter_ends_with_everything_in_use():
    done = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def run_program(*arguments, **options):
    command = [sys.executable, "-m", "ashlar", *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


def test_the_program_runs():
    assert run_program("--version").stdout.split() == ["ashlar", ashlar.__version__]
    wrong = run_program("nothing-such")
    assert wrong.returncode >= 100 and wrong.stderr
    script = pathlib.Path(sys.executable).parent / "ashlar"
    assert subprocess.run([script, "--version"], capture_output=True, text=True).stdout.startswith("ashlar ")


def test_ctrl_c_reaches_the_program():
    process = subprocess.Popen(
        [sys.executable, "-m", "ashlar", "serve", "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )
    try:
        before = []
        for line in process.stdout:
            before.append(line)
            if "listening" in line:
                break
        assert before and "listening" in before[-1], before  # else it ended
        os.killpg(process.pid, signal.SIGINT)
        rest = process.communicate(timeout=60)[0]
    finally:
        process.kill()
    assert "stopping" in rest and process.returncode == 0


def test_a_package_without_the_program_says_so(tmp_path):
    (tmp_path / "__main__.py").write_text((PACKAGE / "__main__.py").read_text())
    done = subprocess.run([sys.executable, tmp_path / "__main__.py"], capture_output=True, text=True)
    assert done.returncode == 1 and "built without the program" in done.stderr
