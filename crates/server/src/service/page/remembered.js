// What the browser remembers for the page beside its chats: small settings by name.

/** A value of the browser's storage, or null: a person may have switched it off. */
export function remembered(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch { /* then it is forgotten */ }
}
