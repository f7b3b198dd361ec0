"""The results document and the terminal report of a comparison."""
