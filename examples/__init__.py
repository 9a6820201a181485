"""Programs and data to learn Rootstock from. Nothing in the product imports them."""
