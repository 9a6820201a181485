"""The pages of whoever runs the service. Every route is made by `Frame.operating` or `changing_service`."""
