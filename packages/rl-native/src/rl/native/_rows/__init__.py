"""Row copies out of a storage in C."""
