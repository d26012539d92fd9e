"""`stereorl chat`: a plain client in the terminal. What is typed next teaches; slash commands add feedback."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stereorl.cli.options import ConfigFile, Home, Model, Set, effective
from stereorl.config import Config
from stereorl.errors import ProcessError

if TYPE_CHECKING:
    from openai import OpenAI
    from rich.console import Console

HELP = "/good  /bad  /fix HOW IT SHOULD BE  /new  /help  /quit"


def chat(
    home: Home = None,
    config: ConfigFile = None,
    set_: Set = None,
    model: Model = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest reply. Default: the server's.")
    ] = None,
) -> None:
    """Talk to the running server; correct it in your own words and it learns.

    Commands: /good and /bad score the last reply, /fix TEXT says how it should have been, /new begins another
    conversation, /quit ends. Start the server with `stereorl up` first.
    """
    settings = effective(home, config, set_, model).config
    from rich.console import Console

    console = Console(highlight=False)
    talk = Talk(connect_to(settings), console, max_tokens=max_tokens)
    console.print(f"[dim]{HELP}[/dim]")
    while True:
        try:
            line = console.input("[bold]you  >[/bold] ").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if line and not talk.take(line):
            return


def connect_to(config: Config) -> OpenAI:
    """A client of this home's server; ProcessError when none runs."""
    from stereorl.study.supervise import read_address
    from stereorl.study.user import connect

    address = read_address(config.home_path)
    if address is None:
        raise ProcessError(
            f"No server runs for {config.home_path}. Start one in another terminal: stereorl up"
        )
    return connect(address.url, os.environ.get(config.serve.api_key_env))


class Talk:
    """One conversation at a time, and what the slash commands do."""

    def __init__(self, client: OpenAI, console: Console, *, max_tokens: int | None = None):
        self.client = client
        self.console = console
        self.max_tokens = max_tokens
        self.messages: list[Any] = []
        self.last: str | None = None

    def take(self, line: str) -> bool:
        """Do what one line says; False to end."""
        command, _, rest = line.partition(" ")
        if command in ("/quit", "/exit"):
            return False
        if command == "/new":
            self.messages, self.last = [], None
        elif command == "/good":
            self.feedback(score=1)
        elif command == "/bad":
            self.feedback(score=-1)
        elif command == "/fix" and rest.strip():
            self.feedback(score=-1, correction=rest.strip())
        elif command.startswith("/"):
            self.console.print(f"[dim]{HELP}[/dim]")
        else:
            self.say(line)
        return True

    def say(self, text: str) -> None:
        """Send it and print the reply while it is made. Ctrl-C cuts the reply and keeps the conversation before it."""
        from openai import APIError

        sent = [*self.messages, {"role": "user", "content": text}]
        options: dict[str, Any] = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        reply = ""
        self.console.print("[bold]model>[/bold] ", end="")
        try:
            with self.client.chat.completions.create(
                model="stereorl", messages=sent, stream=True, **options
            ) as stream:
                for chunk in stream:
                    piece = (chunk.choices[0].delta.content or "") if chunk.choices else ""
                    reply, turn = reply + piece, chunk.id
                    self.console.print(piece, end="", markup=False, soft_wrap=True)
        except KeyboardInterrupt:
            self.console.print(" (cut; it will not be learned from)", style="dim")
            return
        except APIError as error:
            self.console.print(f"\nThe server answers: {error.message}", style="red", markup=False)
            return
        self.console.print()
        self.messages, self.last = [*sent, {"role": "assistant", "content": reply}], turn

    def feedback(self, **said: Any) -> None:
        """Tell the server about the last reply."""
        if self.last is None:
            self.console.print("[dim]There is no reply to talk about yet.[/dim]")
            return
        from openai import APIError

        try:
            self.client.post("/feedback", cast_to=object, body={"turn_id": self.last, **said})
        except APIError as error:
            self.console.print(f"The server answers: {error.message}", style="red", markup=False)
        else:
            self.console.print("[dim]Noted; it goes into one of the next updates.[/dim]")
