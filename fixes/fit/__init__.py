"""Does a model fit the cards? Weights, KV cache and a split over nodes, by arithmetic alone."""
