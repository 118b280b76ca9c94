#!/usr/bin/env python3
"""Drives the page at `/` in a headless Chromium, as a person would.

    page_test.py --trine target/debug/trine [--chromedriver chromedriver] [--pictures FOLDER]

Starts `trine serve` with the model inside the program, and `chromedriver` (Debian: chromium and chromium-driver).
Prints a line for every check and ends with 1 if one failed. `--pictures` keeps screenshots. Needs Python's standard
library alone.
"""

from __future__ import annotations

import argparse
import sys

import access_checks
import chat_checks
import failure_checks
import getting_checks
import image_checks
import keeping_checks
import models_checks
import thinking_checks
from browser import Checks, Server, start_driver


def main() -> None:
    """Runs every check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trine", required=True)
    parser.add_argument("--chromedriver", default="chromedriver")
    parser.add_argument("--pictures", help="folder for screenshots")
    options = parser.parse_args()
    chromedriver, page = start_driver(options.chromedriver, options.pictures)
    checks, server = Checks(), None
    try:
        server = Server(options.trine)
        page.open(server.url)
        page.picture("empty")
        chat_checks.check_chat(page, server, checks)
        chat_checks.check_versions(page, checks)
        chat_checks.check_engine(page, checks)
        chat_checks.check_context(page, checks)
        chat_checks.check_hostile(page, checks)
        keeping_checks.check_list(page, checks)
        keeping_checks.check_background(page, server, checks)
        keeping_checks.check_reload(page, server, checks)
        keeping_checks.check_files(page, checks)
        keeping_checks.check_takeover(page, checks)
        keeping_checks.check_tabs(page, server, checks)
        keeping_checks.check_room(page, checks)
        keeping_checks.check_long(page, checks)
        access_checks.show(page)
        access_checks.check_keyboard(page, checks)
        access_checks.check_looks(page, checks)
        access_checks.check_logs(page, server, checks)
        thinking_checks.check_thinking(page, checks)
        image_checks.check_images(page, checks)
        models_checks.check_models(page, options.trine, checks)
        getting_checks.check_getting(page, options.trine, checks)
        getting_checks.check_base(page, options.trine, checks)
        failure_checks.check_key(page, options.trine, checks)
        failure_checks.check_death(page, options.trine, checks)
    finally:
        if server:
            server.end()
        page.call("DELETE", page.path)
        chromedriver.terminate()
        chromedriver.wait(30)
    print(f"{checks.failed} checks failed" if checks.failed else "every check holds")
    sys.exit(checks.failed > 0)


if __name__ == "__main__":
    main()
