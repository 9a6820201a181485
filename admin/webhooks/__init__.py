"""The webhooks section: endpoints and their deliveries."""
