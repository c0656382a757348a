"""Real engines: stock and fixed vLLM serving a small model in one and in two stages."""
