"""Programs drawn at random, each computed by others and compared at every stage."""
