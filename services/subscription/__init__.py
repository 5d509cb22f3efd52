"""Subscription: events for programs outside, by durable consumers and by webhooks. See README.md."""
