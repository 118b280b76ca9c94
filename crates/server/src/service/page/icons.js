// Small pictures for buttons, drawn with lines on a square of 24.

import { element } from './markdown.js';

const SVG = 'http://www.w3.org/2000/svg';

const SHAPES = {
  attach: 'M19 11.5 12 18.5a4.5 4.5 0 0 1-6.4-6.4l7.8-7.8a3 3 0 0 1 4.3 4.3l-7.6 7.5a1.5 1.5 0 0 1-2.1-2.1l6.7-6.7',
  close: 'M6 6 18 18M18 6 6 18',
  continue: 'M7 5v14l11-7z',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
  delete: 'M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v5M14 11v5',
  down: 'M12 5v14M6 13l6 6 6-6',
  edit: 'M4 20l1-4L16.5 4.5l3 3L8 19zM14 7l3 3',
  export: 'M12 4v11M7 10l5 5 5-5M4 20h16',
  info: 'M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16M12 11v5M12 8v.01',
  menu: 'M4 6h16M4 12h16M4 18h16',
  new: 'M12 5v14M5 12h14',
  next: 'M9 5l7 7-7 7',
  previous: 'M15 5l-7 7 7 7',
  redo: 'M20 5v5h-5M20 10a8 8 0 1 0 0 5',
  send: 'M12 20V5M5 12l7-7 7 7',
  settings: 'M4 7h9M17 7h3M15 4.5v5M4 17h3M11 17h9M9 14.5v5',
  stop: 'M7 7h10v10H7z',
};

/** A picture; what it means stands beside it or in the label of its button. */
export function icon(name) {
  const picture = document.createElementNS(SVG, 'svg');
  picture.setAttribute('viewBox', '0 0 24 24');
  picture.setAttribute('aria-hidden', 'true');
  picture.setAttribute('class', 'icon');
  const path = document.createElementNS(SVG, 'path');
  path.setAttribute('d', SHAPES[name]);
  picture.append(path);
  return picture;
}

/** A button that shows a picture. Its title is its name, so that screen readers do not say it twice. */
export function iconButton(name, label, act) {
  const button = element('button', `icon-button act-${name}`, icon(name));
  button.type = 'button';
  button.title = label;
  button.addEventListener('click', () => act(button));
  return button;
}

/** A button with words. */
export function textButton(label, act, className = '') {
  const button = element('button', className, label);
  button.type = 'button';
  button.addEventListener('click', () => act(button));
  return button;
}

/** Puts pictures into the buttons of the document that name one. */
export function drawIcons() {
  for (const button of document.querySelectorAll('[data-icon]')) button.prepend(icon(button.dataset.icon));
}
