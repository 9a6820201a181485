"""Capacity of the service: samples of what is used, forecasts of when limits are reached, and plans."""
