"""The gateway: two doors (tenant and operator) that speak REST to people and one bus call a request to the owners."""
