"""The contract that every sandbox runtime keeps."""
