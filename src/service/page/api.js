// Questions to the server that this page came from. The token, where one is needed, stays in this tab.
import {byId, setText} from '/ui/dom.js';

const slot = 'ashlar.token';
let needsToken = false;
const base = location.pathname.startsWith('/past') ? '/past' : '';  // of the page over the router's journal
const run = new URLSearchParams(location.search).get('run');  // of a replay with several

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Shows the form until the operator has given a token.
function askForToken(note) {
  const dialog = byId('ask-token');
  if (note) setText(byId('token-note'), note);
  return new Promise((resolve) => {
    const form = byId('token-form');
    // It cannot be left: there is nothing to see without a token.
    dialog.addEventListener('cancel', (event) => event.preventDefault());
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(slot, byId('token').value);
      byId('token').value = '';
      form.onsubmit = null;
      dialog.close();
      resolve();
    };
    if (!dialog.open) dialog.showModal();
    byId('token').focus();
  });
}

export async function openSession() {
  const answer = await fetch('/ui/session.json', {cache: 'no-store'});
  needsToken = (await answer.json()).needs_token;
  if (needsToken && !sessionStorage.getItem(slot)) await askForToken();
}

// The answer as JSON. Throws Refusal for one that is not 2xx, TypeError where there is none.
export async function ask(path, body) {
  const headers = {};
  const token = needsToken ? sessionStorage.getItem(slot) : null;
  if (token) headers['x-ashlar-token'] = token;
  const request = {headers, cache: 'no-store'};
  if (body !== undefined) {
    request.method = 'POST';
    request.body = JSON.stringify(body);
    headers['Content-Type'] = 'application/json';
  }
  const target = base + path;
  const answer = await fetch(run ? `${target}${target.includes('?') ? '&' : '?'}run=${run}` : target, request);
  if (answer.status === 401 && needsToken) {
    sessionStorage.removeItem(slot);
    await askForToken('That token is not the one of this router.');
    return ask(path, body);
  }
  const text = await answer.text();
  let said = null;
  try {
    said = JSON.parse(text);
  } catch {
    throw new Refusal(answer.status, `${path} answered ${answer.status} and no JSON`);
  }
  if (!answer.ok) throw new Refusal(answer.status, said.error?.message ?? said.error ?? `answer ${answer.status}`);
  return said;
}
