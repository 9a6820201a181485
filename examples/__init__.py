"""Programs and data to learn Rootstock from. The product does not import them."""
