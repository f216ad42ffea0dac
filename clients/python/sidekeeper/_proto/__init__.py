"""Generated code; private to the package."""
