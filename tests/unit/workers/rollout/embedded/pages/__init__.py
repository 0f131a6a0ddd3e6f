"""Tests: the page table."""
