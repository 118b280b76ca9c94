#!/usr/bin/env python3
"""Draws docs/terminal.svg: what the program prints on a terminal for the commands below, as text.

    cargo build --release
    tools/terminal-image/draw.py target/release/trine docs/terminal.svg

Each command runs on a pseudo-terminal of its own, in an empty home and with one seed, so that the same program gives the same
image but for figures of speed. What it prints is drawn line by line; colours of the terminal become classes of the style sheet.
Needs Python's standard library and a system with pseudo-terminals.
"""
import fcntl
import html
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios

COMMANDS = ['trine run "Tell me a story about a fox"', "trine"]
# Added to the first command and not shown: the story is the same each time.
HIDDEN = [["--seed", "7", "--device", "cpu"], []]
COLUMNS, ROWS = 96, 40
CELL, LINE, MARGIN, HEAD = 8.4, 19, 18, 40
# Select Graphic Rendition, ECMA-48: what the program uses.
CLASSES = {1: "bold", 2: "faint", 31: "red", 32: "green", 33: "yellow", 34: "blue", 35: "magenta", 36: "cyan"}
STYLE = """
    text { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; font-size: 14px; fill: #e6edf3; }
    .ground { fill: #0d1117; } .prompt { fill: #3fb950; } .faint { fill: #9198a1; } .bold { font-weight: 600; }
    .red { fill: #ff7b72; } .green { fill: #3fb950; } .yellow { fill: #d29922; } .blue { fill: #79c0ff; }
    .magenta { fill: #d2a8ff; } .cyan { fill: #76e3ea; }"""


def printed(program, words, home):
    """Returns all that a command prints on a terminal."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {"HOME": home, "TERM": "xterm-256color", "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    child = subprocess.Popen([program, *words], stdin=subprocess.DEVNULL, stdout=follower, stderr=follower, env=environment, cwd=home)
    os.close(follower)
    read = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # Linux says so that the other end is closed.
            break
        if not part:
            break
        read += part
    os.close(leader)
    if child.wait() != 0:
        sys.exit(f"{words}: exit code {child.returncode}: {read.decode(errors='replace')}")
    return read.decode()


def screen(text):
    """Returns lines of (class, text), as they are on the screen at the end. Knows what the program uses, and refuses the rest."""
    lines, row, column, current = [[]], 0, 0, ""
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[^\[]|[\r\n]|.", text):
        if token == "\n":
            row, column = row + 1, column
            lines.extend([] for _ in range(row + 1 - len(lines)))
        elif token == "\r":
            column = 0
        elif token.startswith("\x1b"):
            codes, kind = token[2:-1], token[-1]
            if kind == "m":
                numbers = [int(code or 0) for code in codes.split(";")]
                names = [CLASSES[number] for number in numbers if number in CLASSES]
                current = " ".join(filter(None, [current, *names])) if names else ""
            elif kind == "K":
                del lines[row][column:]
            elif kind == "A":
                row = max(0, row - int(codes or 1))
            elif codes not in ("?25l", "?25h", "?2004l", "?2004h"):
                sys.exit(f"an escape sequence that is not known: {token!r}")
        else:
            line = lines[row]
            line.extend([("", " ")] * (column - len(line)))
            line[column : column + 1] = [(current, token)]
            column += 1
    return lines


def spans(line):
    """Joins neighbours of one class."""
    found = []
    for name, character in line:
        if found and found[-1][0] == name:
            found[-1][1] += character
        else:
            found.append([name, character])
    return found


def draw(lines):
    while lines and not lines[-1]:
        lines.pop()
    width, height = MARGIN * 2 + CELL * COLUMNS, HEAD + LINE * len(lines) + MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" aria-labelledby="title">',
        "  <title id=\"title\">A terminal in which trine tells a story and lists its first commands</title>",
        f"  <style>{STYLE}\n  </style>",
        f'  <rect class="ground" width="{width:g}" height="{height:g}" rx="8"/>',
    ]
    for index, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        out.append(f'  <circle cx="{MARGIN + 6 + 20 * index}" cy="18" r="6" fill="{colour}"/>')
    for number, line in enumerate(lines):
        parts = []
        for name, text in spans(line):
            text = html.escape(text, quote=False)
            parts.append(f'<tspan class="{name}">{text}</tspan>' if name else text)
        if parts:
            y = HEAD + LINE * number + 14
            out.append(f'  <text x="{MARGIN}" y="{y:g}" xml:space="preserve">{"".join(parts).rstrip()}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, to = os.path.abspath(sys.argv[1]), sys.argv[2]
    lines = []
    for command, hidden in zip(COMMANDS, HIDDEN):
        with tempfile.TemporaryDirectory() as home:
            words = shlex.split(command)[1:]
            shown = screen(printed(program, words + hidden, home))
        lines.append([("prompt", "$"), ("", " ")] + [("bold", character) for character in command])
        lines.extend(shown)
        while lines and not lines[-1]:
            lines.pop()
        lines.append([])
    svg = draw(lines)
    if len(svg.encode()) > 20_000:
        sys.exit(f"{len(svg.encode())} bytes are more than the 20,000 that an image of a terminal may have")
    with open(to, "w", encoding="utf-8") as file:
        file.write(svg)


main()
