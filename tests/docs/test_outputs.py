"""Outputs are made once for a page and its library, and are inserted below their blocks."""

import outputs
import pytest
from execution import PageError
from outputs import insert_outputs, make_outputs

PAGE = """\
# Title

```python
with open({counter!r}, "a") as file:
    file.write("run ")
print("<b>", 1 + 1)
```

```bash exit=2
provi x
```

Text.
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "CACHE", tmp_path / "cache")


def test_a_page_is_run_once_until_it_changes(tmp_path):
    page, counter = tmp_path / "page.md", tmp_path / "counter.txt"
    text = PAGE.format(counter=str(counter)).split("```bash")[0]
    page.write_text(text)
    first = make_outputs([page], jobs=1)
    assert make_outputs([page], jobs=1) == first == {page: [{"text": "<b> 2\n", "figures": []}]}
    assert counter.read_text() == "run "
    page.write_text(text + "\nMore.\n")
    make_outputs([page], jobs=1)
    assert counter.read_text() == "run run "
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_page_that_fails_is_named_and_not_kept(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nraise ValueError('no')\n```\n")
    with pytest.raises(PageError, match=r"page\.md:2: ValueError: no"):
        make_outputs([page], jobs=1)
    assert not list((tmp_path / "cache").iterdir())


def test_outputs_stand_below_their_blocks():
    figure = ("QUJD", 'a "title"', 300)
    known = [{"text": "<b> 2\n", "figures": []}, {"text": "\n", "figures": [figure]}]
    lines = insert_outputs(PAGE, known).splitlines()
    assert lines[lines.index("```") + 2 :][:3] == ["````{ .text .output }", "<b> 2", "````"]
    assert "```bash" in lines, "the option is for us, not for the highlighter"
    [picture] = [line for line in lines if line.startswith("<img")]
    assert 'alt="a &quot;title&quot;"' in picture and "base64,QUJD" in picture
    assert lines.index(picture) > lines.index("provi x")
    assert insert_outputs(PAGE, None).count("output") == 0
