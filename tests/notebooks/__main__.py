"""Writer of the notebooks' stored outputs: `python -m tests.notebooks [NAME ...]` runs each and keeps
what its cells show, so that a code host and the site show it.
"""

import asyncio
import sys

import nbformat
from nbclient import NotebookClient

from tests.notebooks.test_notebooks import FOLDER, NOTEBOOKS


def main(names: list[str]) -> None:
    """Run and store these, or all."""
    for path in NOTEBOOKS:
        if names and path.stem not in names:
            continue
        notebook = nbformat.read(path, 4)  # type: ignore[no-untyped-call]
        client = NotebookClient(notebook, resources={"metadata": {"path": str(FOLDER)}})
        asyncio.run(client.async_execute())
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times
            if cell.cell_type == "code":
                cell.outputs = [
                    each
                    for each in cell.outputs
                    if not (each.output_type == "stream" and each.name == "stderr")
                ]
                for output in cell.outputs:
                    if "text/html" in output.get("data", {}):
                        del output.data["text/plain"]  # a record's repr, with paths of this machine
        notebook.metadata.pop("language_info", None)  # the version of this Python
        path.write_text(nbformat.writes(notebook), encoding="utf-8")  # type: ignore[no-untyped-call]
        print(f"{path.name}: {path.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
