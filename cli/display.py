"""Shows the progress of `rootstock up`: steps with their duration, notes, and the closing panel.

`LiveDisplay` draws on a terminal; `PlainDisplay` writes plain lines to logs and pipes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TextIO

OPERATOR_COMMAND = "add an account with `rootstock operator add`, and sign in at the console"


@dataclass(frozen=True)
class Welcome:
    """Addresses and examples shown to the operator once everything serves."""

    base_url: str
    console_url: str
    metrics_url: str
    data_dir: str
    took_s: float
    model: str
    prompt: str = "Hello"
    api_key: str | None = None
    """Only the demo's key is shown: other keys are shown once, by `rootstock key create`."""
    sign_in: str | None = None
    """A tenant's user, of the demo."""
    operator_sign_in: str | None = None
    """The demo's operator."""
    payments: str | None = None
    """The payment provider, unless that is Stripe."""

    def curl(self) -> str:
        """Returns a request to paste into a shell."""
        key = self.api_key or "$ROOTSTOCK_API_KEY"
        return (
            f"curl {self.base_url}/chat/completions \\\n"
            f'  -H "Authorization: Bearer {key}" \\\n'
            f"  -H 'Content-Type: application/json' \\\n"
            f'''  -d '{{"model": "{self.model}",'''
            f''' "messages": [{{"role": "user", "content": "{self.prompt}"}}]}}\''''
        )

    def python(self) -> str:
        """Returns the same request for the stock `openai` client."""
        key = f'"{self.api_key}"' if self.api_key else 'os.environ["ROOTSTOCK_API_KEY"]'
        first = "from openai import OpenAI" if self.api_key else "import os\nfrom openai import OpenAI"
        return (
            f"{first}\n"
            f'client = OpenAI(base_url="{self.base_url}",\n'
            f"                api_key={key})\n"
            f'answer = client.chat.completions.create(model="{self.model}",\n'
            f'    messages=[{{"role": "user", "content": "{self.prompt}"}}])\n'
            f"print(answer.choices[0].message.content)"
        )

    def places(self) -> list[tuple[str, str]]:
        """Returns label and address of everything that can be visited."""
        rows = [("API", self.base_url), ("Console", self.console_url), ("Metrics", self.metrics_url)]
        if self.sign_in:
            rows.append(("Sign in", self.sign_in))
        rows.append(("Operator", self.operator_sign_in or OPERATOR_COMMAND))
        if self.payments:
            rows.append(("Payments", self.payments))
        return [*rows, ("Data, logs", self.data_dir)]


class Step:
    """A running step; `detail` says what it is doing now, and at its end what it did."""

    def __init__(self, text: str, show: Callable[[str], None] = lambda text: None) -> None:
        self.text = text
        self._show = show
        self._started = time.monotonic()

    def detail(self, text: str) -> None:
        self.text = text
        self._show(text)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started


class Display(Protocol):
    """Where progress is shown."""

    def step(self, title: str, done: str = "ready") -> AbstractContextManager[Step]:
        """Returns a step to enter; `done` describes its success unless it has a detail."""

    def note(self, text: str) -> None:
        """Shows one line of information for the operator."""

    def trouble(self, text: str, lines: list[str]) -> None:
        """Shows an error; `lines` are the evidence, such as the end of a log."""

    def welcome(self, welcome: Welcome) -> None: ...

    def close(self) -> None: ...


def open_display(stream: TextIO | None = None) -> Display:
    """Returns the display that suits the output: a terminal, or anything else."""
    stream = stream or sys.stdout
    return LiveDisplay(stream) if stream.isatty() else PlainDisplay(stream)


class PlainDisplay:
    """Writes one line when a step ends and one per note, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    @contextmanager
    def step(self, title: str, done: str = "ready") -> Iterator[Step]:
        step = Step(done)
        try:
            yield step
        except BaseException:
            self._say(f"{title}: failed after {step.seconds:.1f} s")
            raise
        self._say(f"{title}: {step.text} ({step.seconds:.1f} s)")

    def note(self, text: str) -> None:
        self._say(text)

    def trouble(self, text: str, lines: list[str]) -> None:
        self._say(f"error: {text}")
        for line in lines:
            self._say(f"  | {line}")

    def welcome(self, welcome: Welcome) -> None:
        self._say(f"ready in {welcome.took_s:.1f} s")
        for label, value in welcome.places():
            self._say(f"{label}: {value}")
        self._say(f"\n{welcome.curl()}\n\n{welcome.python()}\n")

    def close(self) -> None:
        self._stream.flush()


class LiveDisplay:
    """Draws running steps as spinners; a finished one is printed above them and stays. For a terminal."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn

        self._console = Console(file=stream, highlight=False)
        self._running = Progress(
            SpinnerColumn("dots", style="cyan"),
            TextColumn("{task.description:<12}[cyan]{task.elapsed:5.1f} s[/]"),
            TextColumn("[dim]{task.fields[detail]}[/]"),
            console=self._console,
            transient=True,
        )

    @contextmanager
    def step(self, title: str, done: str = "ready") -> Iterator[Step]:
        task = self._running.add_task(_escaped(title), detail="")
        step = Step("", lambda text: self._running.update(task, detail=_escaped(text)))
        self._running.start()
        mark = "[bold red]✗[/]"
        try:
            yield step
            mark = "[bold green]✓[/]"
        finally:
            detail = f" [dim]{_escaped(step.text)}[/]" if step.text else ""
            line = f" {mark} {_escaped(title):<12}[cyan]{step.seconds:5.1f} s[/] {detail}"
            self._running.remove_task(task)
            self._running.refresh()
            self._console.print(line)
            if not self._running.tasks:
                self._running.stop()

    def note(self, text: str) -> None:
        self._console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {_escaped(text)}")

    def trouble(self, text: str, lines: list[str]) -> None:
        self._console.print(f"[bold red]error[/] {_escaped(text)}")
        for line in lines:
            self._console.print(f"  [red]│[/] [dim]{_escaped(line)}[/]")

    def welcome(self, welcome: Welcome) -> None:
        from rich.panel import Panel
        from rich.syntax import Syntax
        from rich.table import Table

        places = Table.grid(padding=(0, 2))
        for label, value in welcome.places():
            places.add_row(f"[dim]{label}[/]", f"[bold]{_escaped(value)}[/]")
        title = f"[bold green]rootstock serves[/] [dim]after {welcome.took_s:.1f} s[/]"
        self._console.print(
            Panel(places, title=title, title_align="left", border_style="green", expand=False, padding=(1, 2))
        )
        # Outside the frame and unwrapped, so that copied text carries no borders.
        for code, language in ((welcome.curl(), "bash"), (welcome.python(), "python")):
            syntax = Syntax("", language, theme="ansi_dark", background_color="default")
            self._console.print("\n", syntax.highlight(code), sep="", end="", soft_wrap=True)
        self._console.print("\n[dim]Ctrl-C drains and stops.[/]")

    def close(self) -> None:
        assert not self._running.tasks, "a step is still open"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


@contextmanager
def closing_display(display: Display) -> Iterator[Display]:
    """Closes the display at the end of the block, also after an error."""
    try:
        yield display
    finally:
        display.close()
