"""The README's links; its code and its commands run in test_wheel.py."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)[)#]", README.read_text())
    assert links
    for link in links:
        assert link.startswith("https://") or (README.parent / link).exists(), link
