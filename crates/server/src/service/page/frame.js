// The page's parts at the sides: the list of conversations and the panel, which fold away.

import { remember, remembered } from './remembered.js';

const SIDEBAR = 'trine-sidebar';
const PANEL = 'trine-panel';
const ENGINE = 'trine-engine';
/** Narrower windows show the parts over the conversation, one at a time. The same width is in the style sheet. */
const NARROW = '(max-width: 60rem)';

const $ = (id) => document.getElementById(id);

export class Frame {
  /** `engineSeen` is called when the picture of the engine is folded or unfolded. */
  constructor({ engineSeen }) {
    this.engineSeen = engineSeen;
    this.narrow = matchMedia(NARROW);
    this.narrow.addEventListener('change', () => this.begin());
    $('menu').addEventListener('click', () => this.show('sidebar', $('sidebar').hidden));
    $('settings').addEventListener('click', () => this.show('panel', $('panel').hidden));
    $('shade').addEventListener('click', () => this.closeOver());
    for (const button of document.querySelectorAll('.close-part')) button.addEventListener('click', () => this.closeOver());
    $('engine').open = remembered(ENGINE) === 'open';
    $('engine').addEventListener('toggle', () => {
      remember(ENGINE, $('engine').open ? 'open' : 'closed');
      engineSeen();
    });
    this.begin();
  }

  /** How the parts are when the page opens: as they were left, in narrow windows closed. */
  begin() {
    const isWide = !this.narrow.matches;
    this.set('sidebar', isWide && remembered(SIDEBAR) !== 'closed');
    this.set('panel', isWide && remembered(PANEL) === 'open');
  }

  set(part, isOpen) {
    const button = $(part === 'sidebar' ? 'menu' : 'settings');
    $(part).hidden = !isOpen;
    button.setAttribute('aria-expanded', String(isOpen));
    document.body.classList.toggle(`with-${part}`, isOpen);
    const isOver = this.narrow.matches && !($('sidebar').hidden && $('panel').hidden);
    $('shade').hidden = !isOver;
    // What is under an open part cannot be reached.
    document.querySelector('main').inert = isOver;
    this.engineSeen();
  }

  /** Opens or closes a part, and puts the focus into it or back. */
  show(part, isOpen) {
    if (this.narrow.matches && isOpen) this.set(part === 'sidebar' ? 'panel' : 'sidebar', false);
    this.set(part, isOpen);
    if (!this.narrow.matches) remember(part === 'sidebar' ? SIDEBAR : PANEL, isOpen ? 'open' : 'closed');
    else if (isOpen) $(part === 'sidebar' ? 'new' : 'system').focus();
    else $(part === 'sidebar' ? 'menu' : 'settings').focus();
  }

  openPanel() {
    if ($('panel').hidden) this.show('panel', true);
  }

  openSidebar() {
    if ($('sidebar').hidden) this.show('sidebar', true);
  }

  /** In a narrow window, closes what is over the conversation. Whether there was something. */
  closeOver() {
    if (!this.narrow.matches) return false;
    const part = ['sidebar', 'panel'].find((one) => !$(one).hidden);
    if (!part) return false;
    this.show(part, false);
    return true;
  }

  isEngineSeen() {
    return !$('panel').hidden && $('engine').open;
  }
}
