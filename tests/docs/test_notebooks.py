"""Every tutorial is a notebook, too: its code, its outputs, and the form that nbformat 4.5 wants."""

import json
import re

import pytest
from execution import PageError, find_blocks
from notebooks import TUTORIALS, address, as_notebook, link_to_notebook, tutorials, written

PAGES = tutorials()


def check_is_nbformat(notebook):
    """nbformat's own schema of version 4.5, as far as our cells go, by hand: it is no dependency."""
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert {type(name) for name in notebook["metadata"]["kernelspec"].values()} == {str}
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names) and all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    for cell in notebook["cells"]:
        fields = {"cell_type", "id", "metadata", "source"}
        assert all(isinstance(line, str) for line in cell["source"])
        assert all(line.endswith("\n") for line in cell["source"][:-1]), "lines are joined as they are"
        if cell["cell_type"] == "code":
            assert set(cell) == fields | {"execution_count", "outputs"}
            assert cell["execution_count"] is None or cell["execution_count"] >= 1
            for output in cell["outputs"]:
                check_is_output(output)
        else:
            assert cell["cell_type"] == "markdown" and set(cell) == fields


def check_is_output(output):
    if output["output_type"] == "stream":
        assert set(output) == {"output_type", "name", "text"} and output["name"] == "stdout"
    else:
        assert output["output_type"] == "display_data" and set(output) == {"output_type", "data", "metadata"}
        assert isinstance(output["data"]["image/png"], str)


def test_all_tutorials_but_their_table_of_contents_have_a_notebook():
    assert {page.name for page in PAGES} == {page.name for page in TUTORIALS.glob("*.md")} - {"index.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_becomes_a_notebook_with_its_code(page):
    text = page.read_text()
    blocks = [block for block in find_blocks(text) if block.is_run]
    outputs = [{"text": f"{number}\n", "figures": []} for number, _ in enumerate(blocks)]
    for known in (None, outputs):
        notebook = json.loads(written(as_notebook(text, known)))
        check_is_nbformat(notebook)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
        python = [source for source in sources if not source.startswith("%%bash\n")]
        assert "\n".join(python) + "\n" == "".join(block.code for block in blocks if block.language == "python")
        assert len(sources) == len(blocks)
        shown = [output["text"] for cell in cells for output in cell["outputs"]]
        assert shown == ([[output["text"]] for output in known] if known else [])
        prose = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
        assert text.splitlines()[0] in prose and ".md)" not in prose, "no link to a page that is not there"


def test_outputs_links_and_commands_of_a_page():
    text = "# A\n\nSee [this\npage](../b.md) and [that](https://c.org).\n\n"
    page = text + "```bash\n$ provi demo\n```\n\n```python\nx\n```\n"
    outputs = [{"text": "1\n2\n", "figures": []}, {"text": "", "figures": [["QUJD", "a picture", 300]]}]
    notebook = as_notebook(page, outputs)
    check_is_nbformat(notebook)
    text, command, code = notebook["cells"]
    assert "".join(text["source"]) == "# A\n\nSee this\npage and [that](https://c.org)."
    assert command["source"] == ["%%bash\n", "provi demo"] and command["outputs"][0]["text"] == ["1\n", "2\n"]
    assert code["source"] == ["x"] and code["execution_count"] == 2
    assert code["outputs"][0]["data"] == {"image/png": "QUJD", "text/plain": ["a picture"]}


def test_what_a_notebook_cannot_show_is_refused():
    with pytest.raises(PageError, match="!!! note"):
        as_notebook("# A\n\n!!! note\n    Read this.\n")


def test_a_tutorial_links_to_its_notebook_below_its_title(tmp_path):
    linked = link_to_notebook("# A\n\nText.\n", tmp_path / "a-page.md")
    assert linked.splitlines()[:3] == [
        "# A",
        "",
        '[Download as a notebook](../notebooks/a-page.ipynb){ .notebook download="a-page.ipynb" }',
    ]
    assert address(tmp_path / "a-page.md") == "notebooks/a-page.ipynb"
