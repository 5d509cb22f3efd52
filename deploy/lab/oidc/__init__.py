"""The development OIDC provider: who exists, how it is started, how a script signs in."""
