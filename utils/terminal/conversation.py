"""The answers of a prompt: translations, and commands that change the search."""

from dataclasses import replace

from utils.search.translator import Translator
from utils.terminal.presentation import notices, ranked_lines

HELP = """\
  :n N                 show the N best translations
  :beam N              beam size; 1 is greedy search
  :length_penalty A    larger values favour longer translations
  :prefix TEXT         start each translation with TEXT; without TEXT, no prefix
  :help                show this list
  :quit                leave; so does Ctrl-D"""


class Conversation:
    """Answers lines one by one.

    Args:
        translator: translates; commands change its search settings.
        n_best: number of translations to show.
        prefix: text that each translation starts with.
    """

    def __init__(self, translator: Translator, n_best: int = 1, prefix: str = "") -> None:
        self.translator = translator
        self.n_best = n_best
        self.prefix = prefix
        self.is_over = False

    def answer(self, line: str) -> list[str]:
        """Return the lines to show.

        Raises:
            ValueError: the command is unknown, or does not take the value.
        """
        if line.startswith(":"):
            name, _, value = line[1:].strip().partition(" ")
            return self._obey(name, value.strip())
        prefixes = [self.prefix] if self.prefix else None
        (translation,) = self.translator.translate([line], n_best=self.n_best, prefixes=prefixes)
        shown = ranked_lines(translation) if self.n_best > 1 else [translation.text]
        return [*shown, *[f"({notice.text})" for notice in notices(translation)]]

    def _obey(self, name: str, value: str) -> list[str]:
        """Run a command and return the settings as they are now."""
        search, sampling = self.translator.search, self.translator.sampling
        match name:
            case "q" | "quit" | "exit":
                self.is_over = True
                return []
            case "h" | "help" | "?":
                return HELP.split("\n")
            case "prefix":
                self.translator.translate([""], prefixes=[value])  # refuses characters outside the vocabulary
                self.prefix = value
            case "n":
                n_best = _number(name, value)
                if sampling is not None:
                    self.translator.sampling = replace(sampling, n_samples=max(n_best, sampling.n_samples))
                else:
                    self.translator.search = replace(search, beam_size=max(n_best, search.beam_size))
                self.n_best = n_best
            case "beam":
                self.translator.search = replace(search, beam_size=_number(name, value))
                if sampling is None:
                    self.n_best = min(self.n_best, self.translator.search.beam_size)
            case "length_penalty":
                try:
                    alpha = float(value)
                except ValueError:
                    raise ValueError(f":length_penalty {value}: give a number, such as :length_penalty 1") from None
                self.translator.search = replace(search, length_penalty=alpha)
            case _:
                raise ValueError(f"unknown command :{name}: see :help")
        return [self.settings()]

    def settings(self) -> str:
        """Return the settings in one line."""
        search = self.translator.search
        parts = [f"n {self.n_best}", f"beam {search.beam_size}", f"length_penalty {search.length_penalty:g}"]
        return ", ".join([*parts, f"prefix {self.prefix!r}"] if self.prefix else parts)


def _number(name: str, value: str) -> int:
    """Parse a whole number above 0.

    Raises:
        ValueError: the value is not one.
    """
    if not value.isdecimal() or int(value) < 1:
        asked = f":{name} {value}".rstrip()
        raise ValueError(f"{asked}: give a whole number of at least 1, such as :{name} 4")
    return int(value)
