"""The scripted engine: a test seam that replays given answers on the engine port."""
