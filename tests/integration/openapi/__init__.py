"""The OpenAPI document against a running platform."""
