"""Reports which optional features are off, and settings that weaken a feature that is on."""

from __future__ import annotations

from collections.abc import Iterator

from adapters.signing.key_file import read_keys
from adapters.signing.settings import SigningSettings
from admin.settings import ConsoleSettings
from api.settings import ConnectionSettings
from billing.invoices.settings import InvoiceSettings
from billing.notifications.settings import NotificationSettings
from billing.payments.settings import StripeSettings
from cli.checks.configuration import OPERATOR_REDIS_URL, Configuration
from cli.checks.findings import Finding, Status
from engine.settings import EngineSettings
from engine.signing.settings import VerificationSettings
from telemetry.disk import DiskSettings
from worker.settings import WorkerSettings


def check_features(configuration: Configuration) -> Iterator[Finding]:
    """Yields a finding for every optional feature of the processes whose settings could be read."""
    stripe = configuration.get(StripeSettings)
    mail = configuration.get(NotificationSettings)
    console = configuration.get(ConsoleSettings)
    connections = configuration.get(ConnectionSettings)
    if stripe is not None:
        yield check_stripe(stripe)
    if mail is not None:
        yield check_mail(mail, console)
        yield from check_webhooks(mail)
    if console is not None:
        yield check_console_url(console)
        yield check_providers(console)
        yield check_second_factor(console)
    if connections is not None:
        yield check_proxies(connections, console)
    if (invoices := configuration.get(InvoiceSettings)) is not None:
        yield check_seller(invoices)
    yield from _check_processes(configuration)
    yield from _check_signing(configuration)
    if not configuration.environment.get(OPERATOR_REDIS_URL):
        needed = f"set {OPERATOR_REDIS_URL} for `rootstock tenant`, `key` and other commands"
        yield Finding("operator commands", Status.OFF, needed)


def _check_signing(configuration: Configuration) -> Iterator[Finding]:
    verification, signing = configuration.get(VerificationSettings), configuration.get(SigningSettings)
    if verification is not None and not verification.public_keys:
        detail = "signatures of adapters are not verified: set ROOTSTOCK_SIGNING_PUBLIC_KEYS"
        yield Finding("signatures", Status.OFF, detail)
    if signing is not None and signing.key_file is None:
        yield Finding("signing", Status.OFF, "adapters are not signed: set ROOTSTOCK_SIGNING_KEY_FILE")
    elif signing is not None and signing.key_file is not None:
        try:
            num_keys = len(read_keys(signing.key_file))
        except ValueError as error:
            yield Finding("signing", Status.FAILED, f"ROOTSTOCK_SIGNING_KEY_FILE: {error}")
        else:
            yield Finding("signing", Status.OK, f"{num_keys} key{'s' if num_keys > 1 else ''}")


def check_stripe(settings: StripeSettings) -> Finding:
    name = "payments (Stripe)"
    if settings.api_key is None or not settings.enabled:
        return Finding(name, Status.OFF, "invoices only: set ROOTSTOCK_STRIPE_API_KEY to collect payments")
    if settings.webhook_secret is None or not settings.webhook_secret.get_secret_value():
        detail = "no webhooks are accepted, payments are noticed within the hour"
        return Finding(name, Status.WARNING, f"{detail}: set ROOTSTOCK_STRIPE_WEBHOOK_SECRET")
    if "return_url" not in settings.model_fields_set:
        detail = f"Stripe's pages return to {settings.return_url}"
        return Finding(
            name, Status.WARNING, f"{detail}: set ROOTSTOCK_STRIPE_RETURN_URL to the console's URL"
        )
    is_test = settings.api_key.get_secret_value().startswith(("sk_test_", "rk_test_"))
    mode = "a test key: no money moves" if is_test else "a live key"
    return Finding(name, Status.OK, f"{mode}, at {settings.api_base}; the key was not tried")


def check_mail(settings: NotificationSettings, console: ConsoleSettings | None) -> Finding:
    """Checks mail; mail with links needs the console's URL too."""
    name = "mail (SMTP)"
    if not settings.smtp_host:
        return Finding(name, Status.OFF, "no mail is sent: set ROOTSTOCK_NOTIFY_SMTP_HOST")
    server = f"{settings.smtp_host}:{settings.smtp_port}"
    if "sender" not in settings.model_fields_set:
        detail = f"mail through {server} is from {settings.sender!r}, which servers reject"
        return Finding(name, Status.WARNING, f"{detail}: set ROOTSTOCK_NOTIFY_SENDER")
    if settings.smtp_security == "none" and settings.smtp_user:
        detail = f"the password for {server} is sent unencrypted"
        return Finding(
            name, Status.WARNING, f"{detail}: set ROOTSTOCK_NOTIFY_SMTP_SECURITY to starttls or tls"
        )
    if console is not None and not console.url:
        detail = f"through {server}, but no invitations or password links"
        return Finding(name, Status.WARNING, f"{detail}: set ROOTSTOCK_CONSOLE_URL")
    return Finding(name, Status.OK, f"{server} ({settings.smtp_security}); the server was not tried")


def check_webhooks(settings: NotificationSettings) -> Iterator[Finding]:
    """Yields findings only for settings that are meant for tests."""
    if settings.webhooks_private:
        detail = "tenants' webhooks reach private addresses of this network"
        yield Finding("webhooks", Status.WARNING, f"{detail}: unset ROOTSTOCK_NOTIFY_WEBHOOKS_PRIVATE")
    if settings.webhooks_http:
        detail = "tenants' webhooks may use http://, unencrypted"
        yield Finding("webhooks", Status.WARNING, f"{detail}: unset ROOTSTOCK_NOTIFY_WEBHOOKS_HTTP")


def check_console_url(settings: ConsoleSettings) -> Finding:
    if not settings.url:
        detail = "no mail with links: set ROOTSTOCK_CONSOLE_URL, such as https://rootstock.example"
        return Finding("console URL", Status.OFF, detail)
    return Finding("console URL", Status.OK, settings.url)


def check_providers(settings: ConsoleSettings) -> Finding:
    name = "sign-in providers (OpenID)"
    if not settings.providers:
        return Finding(name, Status.OFF, "passwords only: set ROOTSTOCK_CONSOLE_PROVIDERS to add providers")
    return Finding(name, Status.OK, ", ".join(provider.name for provider in settings.providers))


def check_second_factor(settings: ConsoleSettings) -> Finding:
    name = "operators' second factor"
    if not settings.operators_second_factor:
        detail = "operators sign in with a password alone"
        return Finding(name, Status.OFF, f"{detail}: unset ROOTSTOCK_CONSOLE_OPERATORS_SECOND_FACTOR")
    return Finding(name, Status.OK, "required")


def check_proxies(settings: ConnectionSettings, console: ConsoleSettings | None) -> Finding:
    """Reports which peers' X-Forwarded-For and X-Forwarded-Proto are trusted."""
    name, variable = "trusted proxies", "ROOTSTOCK_API_FORWARDED_ALLOW_IPS"
    if settings.forwarded_allow_ips == "*":
        detail = f"{variable}=* believes X-Forwarded-For of every client, who can so choose an address"
        return Finding(name, Status.WARNING, f"{detail}: name the proxy's address instead")
    if settings.forwarded_allow_ips:
        return Finding(name, Status.OK, settings.forwarded_allow_ips)
    detail = f"no proxy's X-Forwarded-* headers are believed: set {variable} to the address of yours"
    if console is not None and console.url.startswith("https://"):
        return Finding(name, Status.WARNING, f"{console.url} needs a TLS proxy, but {detail}")
    return Finding(name, Status.OFF, detail)


def check_seller(settings: InvoiceSettings) -> Finding:
    fields = ("seller_name", "seller_address", "seller_email", "seller_tax_id")
    unset = [name for name in fields if name not in settings.model_fields_set or not getattr(settings, name)]
    if unset:
        variables = ", ".join(f"ROOTSTOCK_INVOICE_{name.upper()}" for name in unset)
        detail = f"invoices are from {settings.seller_name!r} and incomplete: set {variables}"
        return Finding("invoice seller", Status.OFF, detail)
    return Finding("invoice seller", Status.OK, settings.seller_name)


def _check_processes(configuration: Configuration) -> Iterator[Finding]:
    """Yields findings only for disabled safeguards and for settings of tests."""
    engine, worker = configuration.get(EngineSettings), configuration.get(WorkerSettings)
    disk = configuration.get(DiskSettings)
    if engine is not None and engine.null:
        detail = "the engine makes up its tokens, for tests"
        yield Finding("model", Status.WARNING, f"{detail}: unset ROOTSTOCK_ENGINE_NULL")
    if worker is not None and not worker.beat:
        detail = "this worker sends no periodic tasks: another one must, or unset ROOTSTOCK_WORKER_BEAT"
        yield Finding("schedule", Status.OFF, detail)
    if disk is not None and disk.min_free_bytes == 0:
        detail = "processes run until a disk is full: unset ROOTSTOCK_DISK_MIN_FREE_BYTES"
        yield Finding("disk space limit", Status.OFF, detail)
