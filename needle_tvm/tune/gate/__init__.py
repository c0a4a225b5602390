"""Whether a candidate's results are right."""
