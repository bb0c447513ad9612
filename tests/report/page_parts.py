"""A strict reader of the page: nesting, identifiers, links, and text by element."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"br", "hr", "meta", "col", "input"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    def all(self, tag: str | None = None, class_: str | None = None) -> list[Element]:
        found = []
        for child in self.children:
            if isinstance(child, Element):
                names = (child.attributes.get("class") or "").split()
                if tag in (None, child.tag) and (class_ is None or class_ in names):
                    found.append(child)
                found += child.all(tag, class_)
        return found

    def by_id(self, name: str) -> Element:
        return next(e for e in self.all() if e.attributes.get("id") == name)

    @property
    def values(self) -> list[str]:
        return [str(e.attributes["value"]) for e in self.all("data")]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.stack = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"repeated attribute in <{tag}>"
        element = Element(tag, dict(attrs))
        self.stack[-1].children.append(element)
        if tag not in VOID:
            self.stack.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack[-1].tag == tag, f"</{tag}> closes <{self.stack[-1].tag}>"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        self.stack[-1].children.append(data)


def read_page(page: str) -> Element:
    """Parse; fail on wrong nesting, on repeated identifiers, and on links that lead nowhere."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.stack == [reader.root], "an element was left open"
    elements = reader.root.all()
    ids = [e.attributes["id"] for e in elements if "id" in e.attributes]
    assert len(set(ids)) == len(ids), "identifiers repeat"
    links = [str(e.attributes["href"]) for e in elements if "href" in e.attributes]
    assert all(link[0] == "#" and link[1:] in ids for link in links), "a link leads nowhere"
    return reader.root
