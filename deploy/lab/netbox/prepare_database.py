"""Bring NetBox's database up to its version and make sure of the administrator and the API token.

Run by NetBox's own interpreter (`python prepare_database.py`), with NETBOX_ROOT set. The one setup
of Django, which takes seconds, serves all steps. Reads the administrator's password from standard
input and writes a new API token as the last line of standard output. Earlier tokens that it made are
removed, so that there is one at a time.
"""

import sys

import django  # type: ignore[import-not-found]

ADMIN = "admin"
TOKEN_DESCRIPTION = "Slipway"


def main() -> None:
    password = sys.stdin.readline().strip()
    django.setup()

    if _lacks_migrations():
        from django.core.management import call_command  # type: ignore[import-not-found]

        call_command("migrate", interactive=False, verbosity=1)
    if password:
        print(_admin_token(password))


def _lacks_migrations() -> bool:
    """What `migrate --check` says. It saves the half of an idle `migrate` that refreshes every permission."""
    from django.core.management import call_command

    try:
        call_command("migrate", check_unapplied=True, verbosity=0)
    except SystemExit:
        return True
    return False


def _admin_token(password: str) -> str:
    from users.models import Token, User  # type: ignore[import-not-found]

    admin, _ = User.objects.get_or_create(username=ADMIN, defaults={"email": "admin@example.com"})
    admin.is_active = admin.is_superuser = True
    admin.set_password(password)
    admin.save()
    Token.objects.filter(user=admin, description=TOKEN_DESCRIPTION).delete()
    token = Token(user=admin, description=TOKEN_DESCRIPTION)
    token.save()
    return f"nbt_{token.key}.{token.token}"


if __name__ == "__main__":
    main()
