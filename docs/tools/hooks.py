"""The site's build in MkDocs' own steps: run the pages, show their outputs, formulas and linked files."""

import os
from pathlib import Path
from typing import Any

from execution import PageError
from formulas import Formulas
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from notebooks import address, as_notebook, link_to_notebook, tutorials, written
from outputs import insert_outputs, make_outputs
from repository_links import FOLDER, linked_files, point_into_the_site

_outputs: dict[Path, list[dict]] = {}


def on_config(config: Any) -> Any:
    """Formulas become MathML, in docstrings too."""
    config.markdown_extensions.append(Formulas())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Run the pages whose output is not known (`PROVI_DOCS_EXECUTE=0`: none); add files they link to, and notebooks."""
    docs = Path(config.docs_dir)
    pages = [Path(file.abs_src_path) for file in files.documentation_pages()]
    try:
        if os.environ.get("PROVI_DOCS_EXECUTE", "1") != "0":
            _outputs.update(make_outputs(pages, jobs=int(os.environ.get("JOBS", "2"))))
        linked = {file for page in pages for file in linked_files(page, docs)}
        notebooks = {page: written(as_notebook(page.read_text(), _outputs.get(page))) for page in tutorials()}
    except PageError as error:
        raise PluginError(str(error)) from error
    for file in sorted(linked):
        files.append(File.generated(config, f"{FOLDER}/{file.relative_to(docs.parent)}", abs_src_path=str(file)))
    for page, notebook in notebooks.items():
        files.append(File.generated(config, address(page), content=notebook))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page with its outputs, with links that stay within the site and, a tutorial, to its notebook."""
    source = Path(page.file.abs_src_path)
    shown = insert_outputs(point_into_the_site(markdown, source, Path(config.docs_dir)), _outputs.get(source))
    return link_to_notebook(shown, source) if source in tutorials() else shown
