"""Reading an HTML page back: matching tags, what it refers to, headings, pictures, colours and their contrast."""

import re
from html.parser import HTMLParser

import numpy as np

VOID = {"meta", "link", "br", "hr", "img", "input", "base", "col", "embed", "source", "track", "wbr", "area"}


class Page(HTMLParser):
    """The elements of a page, its text, and an error where tags do not match."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), (tag, names)
        self.elements.append((tag, dict(attributes), list(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert tag in VOID or "svg" in self.open, tag  # HTML knows no other elements that close themselves
        self.elements.append((tag, dict(attributes), list(self.open)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data):
        self.texts.append((tuple(self.open), data))

    def text(self, tag=None):
        return "".join(data for where, data in self.texts if "style" not in where and (tag is None or tag in where))

    def all(self, tag):
        return [(attributes, where) for name, attributes, where in self.elements if name == tag]


def check_self_contained(source):
    page = Page(source)
    assert source.startswith("<!DOCTYPE html>")
    assert "://" not in source and "javascript:" not in source.lower()
    for tag, attributes, _ in page.elements:
        assert tag not in ("script", "iframe", "object", "embed", "link", "img", "base", "form", "foreignobject"), tag
        for name, value in attributes.items():
            assert not name.startswith("on") and name not in ("src", "srcset", "action", "data"), (tag, name)
            if name in ("href", "xlink:href"):
                assert value.startswith("#"), value
            if name not in ("content", "aria-label"):
                assert all(place == "#" for place in re.findall(r"url\((.)", value or "")), value
    return page


def check_structure(page):
    ids = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes, _ in page.elements:
        for name in ("href", "aria-labelledby"):
            if name in attributes:
                assert attributes[name].removeprefix("#") in ids, attributes
        assert "clip-path" not in attributes or attributes["clip-path"][5:-1] in ids
    levels = [int(tag[1]) for tag, _, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(levels, levels[1:], strict=False))
    assert page.all("html")[0][0]["lang"] == "en"
    assert any(a.get("name") == "viewport" and "width=device-width" in a["content"] for a, _ in page.all("meta"))
    assert len(page.all("main")) == 1


def check_pictures(page, number):
    svgs = page.all("svg")
    assert len(svgs) == number == len(page.all("figure")) == len(page.all("figcaption"))
    for attributes, where in svgs:
        assert attributes["role"] == "img" and len(attributes["aria-label"]) > 30 and "figure" in where
    for tag, attributes, where in page.elements:  # all colours are variables of the page, light or dark
        if "svg" in where:
            assert not re.search(r"#[0-9a-fA-F]{3,8}\b", attributes.get("style", "")), (tag, attributes)
    for attributes, _ in page.all("th"):
        assert attributes["scope"] in ("col", "row"), attributes
    for attributes, where in page.all("table"):
        assert "div" in where and attributes["role"] == "table"
    for attributes, _ in page.all("div"):
        if attributes.get("class") == "scroll":  # reached and moved by the keyboard
            assert attributes["tabindex"] == "0" and attributes["aria-label"]


def check_style(source):
    """What only a browser shows, as far as the style sheet says it: focus, print, telephones."""
    style = source[source.index("<style>") : source.index("</style>")]
    assert re.search(r":focus-visible \{ outline: 3px solid", style) and "outline: none" not in style
    assert "@media print" in style and "details::details-content { content-visibility: visible" in style
    assert "@media screen and (prefers-color-scheme: dark)" in style  # paper stays light
    assert "@media (max-width: 40rem)" in style and not re.search(r"font-size: \.[0-7]", style)


def schemes(source):
    """The colours of the style sheet, light and dark."""
    blocks = re.findall(r":root \{(.*?)\}", source, re.S)
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in blocks)
    assert light.keys() == dark.keys() and len(light) == 18
    return light, dark


def rgb(colour):
    return np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])


def contrast(first, second):
    """The contrast ratio of WCAG 2.2."""
    linear = [np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in (first, second)]
    low, high = sorted(float(c @ [0.2126, 0.7152, 0.0722]) for c in linear)
    return (high + 0.05) / (low + 0.05)
