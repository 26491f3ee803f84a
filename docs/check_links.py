"""Check the links of a built site that lead into it: `python docs/check_links.py docs/_build/html`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Anchors of a page, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Read the attributes of one element."""
        for name, value in attrs:
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.links.append(value)


def broken(root: Path) -> Iterator[str]:
    """Each link to a file or an anchor that does not exist, with its page."""
    root = root.resolve()
    pages = {
        path: Page(path.read_text(encoding="utf-8"))
        for path in sorted(root.rglob("*.html"))
    }
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            url = urlsplit(link)
            if url.scheme or url.netloc or link in ("#", ""):
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(url.fragment)
            known = pages[target].anchors if target in pages else set()
            if not target.is_file() or (
                anchor and target in pages and anchor not in known
            ):
                yield f"{path.relative_to(root)}: {link}"


def main(folder: str) -> int:
    """Write broken links to the standard error; return 1 if there are any."""
    found = list(broken(Path(folder)))
    sys.stderr.writelines(f"{one}\n" for one in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
