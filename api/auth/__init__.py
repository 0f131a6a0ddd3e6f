"""Who calls: API keys as Bearer or X-API-Key, their scope and role."""
