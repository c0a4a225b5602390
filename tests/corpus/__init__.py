"""Programs with right answers, frozen as files: see `test_corpus.py` and `make.py`."""
