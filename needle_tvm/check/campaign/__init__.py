"""Random programs, compiled at every stage and compared with references."""
