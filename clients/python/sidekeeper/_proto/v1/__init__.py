"""Generated from ``proto/sidekeeper/v1`` by ``generate.py``; not to be edited."""
