// Pictures that go with a message: read from files, shown small, and sent as data URLs. They are drawn on canvases, so that the
// page needs no permission to show pictures of any address.

import { sizeText } from './attach.js';
import { element } from './markdown.js';

/** Tokens of a picture, at the most: 256 in Gemma 3, up to 280 in Gemma 4, and those around them. */
export const IMAGE_TOKENS = 300;
/** What the server reads as it is. */
const KINDS = ['image/png', 'image/jpeg', 'image/webp', 'image/gif'];
const FILE_BYTES_MAX = 64 << 20;
/** Pictures of more bytes are drawn again with at most this side: each request of a conversation sends them all. */
const KEPT_BYTES_MAX = 1 << 20;
const SIDE_MAX = 2048;
const QUALITY = 0.9;

/** Whether a file is sent as a picture. SVG is text. */
export function isImage(file) {
  return file.type.startsWith('image/') && file.type !== 'image/svg+xml';
}

function drawn(bitmap, side) {
  const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const pen = canvas.getContext('2d');
  // A JPEG has no transparent places.
  pen.fillStyle = 'white';
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas;
}

function urlOf(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** Reads a picture that a person chose: {name, url, bytes}. Throws what is wrong with it. */
export async function readImage(file) {
  const name = file.name.replace(/[\u0000-\u001f\u007f]/g, ' ').slice(0, 120).trim() || 'image';
  const fail = (what) => new Error(`“${name}” was not attached: ${what}.`);
  if (file.size > FILE_BYTES_MAX) {
    throw fail(`it has ${sizeText(file.size)}, at most ${sizeText(FILE_BYTES_MAX)} are taken`);
  }
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw fail('this browser cannot read it as an image; save it as PNG or JPEG');
  }
  let blob = file;
  if (!KINDS.includes(file.type) || file.size > KEPT_BYTES_MAX) {
    const canvas = drawn(bitmap, SIDE_MAX);
    blob = await new Promise((resolve) => { canvas.toBlob(resolve, 'image/jpeg', QUALITY); });
  }
  bitmap.close();
  if (!blob) throw fail('it is too large for this browser');
  return { name, url: await urlOf(blob), bytes: blob.size };
}

/** The element of a picture, which appears when it is decoded. */
export function imageElement({ name, url }, side) {
  const place = element('span', 'image');
  place.setAttribute('role', 'img');
  place.setAttribute('aria-label', name);
  show(place, url, side).catch(() => place.append(element('span', 'quiet', name)));
  return place;
}

async function show(place, url, side) {
  const [, kind, data] = /^data:(image\/[a-z]+);base64,(.*)$/.exec(url);
  const blob = new Blob([Uint8Array.from(atob(data), (char) => char.charCodeAt(0))], { type: kind });
  const bitmap = await createImageBitmap(blob);
  place.append(drawn(bitmap, side));
  bitmap.close();
}
