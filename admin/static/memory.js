// Remembers files and how far they were sent, so that a page that comes back goes on: in the browser's own
// database, which keeps a file itself. Where that fails nothing is remembered, and nothing else fails.

const DATABASE = "rootstock-uploads";
const STORE = "slots";
const LIFETIME_MS = 55 * 60 * 1000;  // of an upload on the server: an hour

function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function within(mode, act) {
  try {
    const database = await open();
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, mode);
      const request = act(transaction.objectStore(STORE));
      transaction.oncomplete = () => {
        database.close();
        resolve(request.result);
      };
      transaction.onabort = transaction.onerror = () => {
        database.close();
        reject(transaction.error);
      };
    });
  } catch {
    return undefined;
  }
}

// What was remembered of a slot of a page: {file, known, fileId}, or nothing.
export async function recall(place, slot, owner) {
  const kept = await within("readonly", (store) => store.get(`${owner}/${place}/${slot}`));
  if (!kept) return null;
  if (Date.now() - kept.at < LIFETIME_MS) return kept;
  await forget(place, slot, owner);
  return null;
}

export async function remember(place, slot, owner, kept) {
  await within("readwrite", (store) => store.put({ at: Date.now(), ...kept }, `${owner}/${place}/${slot}`));
}

export async function forget(place, slot, owner) {
  await within("readwrite", (store) => store.delete(`${owner}/${place}/${slot}`));
}
