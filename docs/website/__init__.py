"""The site of all Markdown pages (`make site`, `python -m docs.website`).

- `pages` gathers the pages and keeps the links between them right. `normal` writes them as
  Python-Markdown reads them.
- `figures` takes the chapters' pictures out of their notebooks (`docs/guide/notebooks.py` executes
  the chapters), and `rungs` folds what a rung changes below its code.
- `compiler` runs the pipeline on the small models of `models` and shows each pass; `drawing` draws
  their graphs.
- `lab` adds the lab's reports. `docs/reference.py` makes pages of docstrings.
- `check` looks for links that lead nowhere, and for anything that a browser would fetch from
  another machine.

Nothing generated is kept.
"""
