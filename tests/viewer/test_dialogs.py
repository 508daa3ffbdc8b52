"""The dialogs of the page, used by keys alone and with values that mean nothing."""

import json

import pytest
from tests.browser.chromium import Chromium
from tests.viewer.conftest import ServedJournal
from tests.viewer.test_pages import click, press, show, wait, write

GONE = "!document.querySelector('dialog')"


def open_dialog(browser: Chromium, served: ServedJournal, key: str, run: str = "talk") -> None:
    show(browser, served.address(f"run/{served.runs[run]}"), ".block")
    press(browser, key)
    wait(browser, "document.querySelector('dialog[open]')")


@pytest.mark.parametrize("key", ["?", "f", "l"])
def test_escape_closes_a_dialog_and_no_key_acts_behind_it(
    browser: Chromium, served: ServedJournal, key: str
) -> None:
    show(browser, served.address(f"run/{served.runs['talk']}"), ".block")
    browser.evaluate("document.querySelector('.transcript').focus()")
    press(browser, key)
    wait(browser, "document.querySelector('dialog[open]')")
    place = browser.evaluate("location.hash")
    browser.evaluate("[...document.querySelectorAll('dialog button')].at(-1).focus()")
    press(browser, "j", "u")
    assert browser.evaluate("location.hash") == place
    press(browser, "Escape")
    wait(browser, GONE)
    assert browser.evaluate("document.activeElement.className") == "transcript"
    press(browser, "j")
    wait(browser, "document.querySelector('.block.picked')")


def test_ctrl_and_enter_send_a_form_from_a_text_of_several_lines(
    browser: Chromium, served: ServedJournal
) -> None:
    open_dialog(browser, served, "l")
    write(browser, "dialog textarea", "Read on a Monday")
    press(browser, "Enter", has_ctrl=True)
    wait(browser, GONE)
    wait(browser, "document.querySelector('.toast')?.innerText === 'noted'")
    wait(browser, "document.querySelector('.transcript').innerText.includes('Read on a Monday')")


def test_a_press_within_a_dialog_does_not_close_it(browser: Chromium, served: ServedJournal) -> None:
    open_dialog(browser, served, "l")
    box = browser.evaluate(
        "(({left, top}) => [left, top])(document.querySelector('dialog').getBoundingClientRect())"
    )

    def press_at(x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            given = {"x": x, "y": y, "button": "left", "clickCount": 1}
            browser.send("Input.dispatchMouseEvent", type=kind, **given)

    press_at(box[0] + 4, box[1] + 4)
    assert browser.evaluate("document.querySelector('dialog') !== null")
    press_at(box[0] - 20, box[1] - 20)
    wait(browser, GONE)


def test_a_note_that_says_nothing_cannot_be_saved(browser: Chromium, served: ServedJournal) -> None:
    open_dialog(browser, served, "l")
    is_off = "document.querySelector('dialog .main').disabled"
    assert browser.evaluate(is_off)
    write(browser, "[aria-label='Value of the label']", "good")
    assert browser.evaluate(is_off)
    write(browser, "[aria-label='Name of the label']", "quality")
    assert not browser.evaluate(is_off)


@pytest.mark.parametrize("given", ["", "0", "000", "-1", "1.5"])
def test_a_run_is_not_forked_at_a_number_that_no_event_has(
    browser: Chromium, served: ServedJournal, given: str
) -> None:
    open_dialog(browser, served, "f")
    place = browser.evaluate("location.hash")
    browser.evaluate(
        "(box => { Object.getOwnPropertyDescriptor(Object.getPrototypeOf(box), 'value').set.call(box, "
        f"{json.dumps(given)}); box.dispatchEvent(new Event('input', {{bubbles: true}})); "
        "})(document.querySelector('#fork-at'))"
    )
    browser.evaluate("document.querySelector('dialog form').requestSubmit()")
    assert browser.evaluate("document.querySelector('dialog .main').disabled") is (given == "")
    assert browser.evaluate("document.querySelector('#fork-at').validity.valid") is (given == "")
    assert not browser.requests[-1].endswith("/fork")
    assert browser.evaluate("location.hash") == place
    click(browser, "Close")
    wait(browser, GONE)
