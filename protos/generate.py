"""Generate the Python code of the wire contract: `python -m protos.generate [FOLDER]`.

Each `.proto` file below this folder becomes messages, service and types beside it, checked in, so
that only changes to the contract need the generator. The compiler names modules as the proto
package does; they live below `protos`, so their imports are prefixed.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parent

_OUTPUTS = ("python_out", "grpc_python_out", "mypy_out", "mypy_grpc_out")


def generate(target: Path) -> list[Path]:
    """Write the code of every `.proto` file below `target`; returns the files.

    Raises subprocess.CalledProcessError for a refused file; the compiler's reason is on stderr.
    """
    with tempfile.TemporaryDirectory(prefix="ultraserve-protos-") as scratch:
        _compile(Path(scratch))
        made = []
        for path in sorted(Path(scratch).rglob("*_pb2*.py*")):
            if "_pb2_grpc" in path.name and "Stub" not in path.read_text():
                continue  # its file has no service, and the compiler wrote nothing into it
            written = target / path.relative_to(scratch)
            written.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(with_prefix(path.read_text()))
            made.append(written)
    return made


def _compile(scratch: Path) -> None:
    sources = sorted(path.relative_to(SOURCES) for path in SOURCES.rglob("*.proto"))
    # The plugins that write types are programs beside this interpreter, which PATH may not name.
    programs = Path(sys.executable).parent
    plugins = [
        f"--plugin={name}={programs / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
    ]
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={SOURCES}"),
        *plugins,
        *(f"--{output}={'quiet:' if 'mypy' in output else ''}{scratch}" for output in _OUTPUTS),
        *map(str, sources),
    ]
    subprocess.run(command, check=True)


def with_prefix(code: str) -> str:
    """Generated code with `protos.` before the names of our modules."""
    return re.sub(r"(?<![\w./])ultraserve\.v\d+(?= import|\.\w+_pb2)", r"protos.\g<0>", code)


if __name__ == "__main__":
    for file in generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCES):
        print(file)
