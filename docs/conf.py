from __future__ import annotations

import prism

project = "prism"
author = "The prism authors"
copyright = f"2026, {author}"  # Sphinx reads it by this name
version = release = prism.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["search.md"]  # how_it_searches.md includes it: search.html is Sphinx's own search page
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"prism {release}"

autodoc_typehints = "description"
autodoc_member_order = "bysource"
