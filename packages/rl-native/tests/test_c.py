"""The C tests, under the sanitizers of address and undefined behaviour where the compiler has them."""

import subprocess
from pathlib import Path

import pytest

# the C tests are compiled as the build compiles the library
from rl.native._build import FLAGS, SOURCES, compiler

HERE = Path(__file__).parent / "c"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O0"]


def _compile(flags, source, program):
    tested = source.name.removeprefix("test_")
    parts = [str(part) for name in ("dispatch.c", tested) for part in SOURCES.rglob(name)]
    folders = [f"-I{folder}" for folder in SOURCES.iterdir()]
    line = [*compiler(), *FLAGS, *flags, *folders, str(source), *parts]
    return subprocess.run([*line, "-o", str(program), "-lm"], capture_output=True, text=True, check=False)


def _has_sanitizers(folder):
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    for command in ([*compiler(), *SANITIZERS, str(source), "-o", str(folder / "empty")], [str(folder / "empty")]):
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
    return True


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("source", sorted(HERE.glob("test_*.c")), ids=lambda path: path.stem)
def test_in_c(source, tmp_path):
    flags = [*SANITIZERS, "-Werror"] if _has_sanitizers(tmp_path) else ["-Werror"]
    made = _compile(flags, source, tmp_path / "program")
    assert made.returncode == 0, made.stderr
    ran = subprocess.run([str(tmp_path / "program")], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
