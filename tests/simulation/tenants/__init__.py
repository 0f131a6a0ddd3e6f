"""Tenants 1:2:5 on shared engines, whole engines and gangs."""
