"""The reader of torch functions and modules."""
