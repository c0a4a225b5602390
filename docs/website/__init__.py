"""The website of all Markdown pages (`make site`, `python -m docs.website`).

- `pages` gathers the pages and adapts the links between them. `normal` rewrites the pages in the
  form that Python-Markdown reads.
- `home` makes the first page.
- `figures` puts the course's pictures into its pages, including the pictures that its code draws
  (`docs/course/notebooks.py` executes the pages).
- `atlas` writes a section for each rung into the ladders' pages, with the times that `measured`
  reads from docs/results.
- `compiler` runs the pipeline on the small models of `models` and shows each pass; `drawing` draws
  their graphs.
- `lab` adds the lab's reports. `docs/reference.py` makes pages from the docstrings.
- `check` finds links that lead nowhere, and anything that a browser would fetch from another
  machine.

The repository keeps no generated file.
"""
