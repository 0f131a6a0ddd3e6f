"""Parts of the `qemu` runtime that need no machine."""
