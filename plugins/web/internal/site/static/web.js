// Says whether the page is kept up to date, shows times in the browser's time zone, and copies a command that is
// clicked. Pages can be read without it.
document.addEventListener('htmx:sse:after:message', () => live('live', 'good'));
document.addEventListener('htmx:sse:error', () => live('not live: reload', 'bad'));
document.addEventListener('htmx:sse:close', () => live('not live: reload', 'bad'));
document.addEventListener('htmx:error', () => live('not live: reload', 'bad'));

// A page that is left ends its stream, also one that has had no answer yet, and also where the browser keeps the page
// for the way back: HTTP/1.1 has six connections. stop() would end them all, and with them what the next page loads.
let connection;
document.addEventListener('htmx:sse:before:connection', event => connection = event.detail.connection);
addEventListener('pagehide', () => {
  htmx.trigger('#main', 'htmx:abort');
  connection?.abortController.abort();
});
addEventListener('pageshow', event => event.persisted && location.reload());

// Times in UTC are shown as the browser's clock shows them, with UTC as the title. An update brings UTC again.
const utc = /\b(\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d UTC\b/g, pad = n => String(n).padStart(2, '0');
function clocks() {
  const texts = document.createTreeWalker(document.getElementById('main'), NodeFilter.SHOW_TEXT);
  for (let text; text = texts.nextNode();) {
    const place = text.parentElement, shown = text.data.replace(utc, (found, year) => {
      const at = new Date(year ? found.replace(' UTC', 'Z') : place.dateTime);
      return isNaN(at) ? found : (year ? at.getFullYear() + '-' : '') + pad(at.getMonth() + 1) + '-' + pad(at.getDate()) + ' ' +
        [at.getHours(), at.getMinutes(), at.getSeconds()].map(pad).join(':');
    });
    if (shown === text.data) continue;
    if (!place.title) place.title = text.data.match(utc).join(', ');
    text.data = shown;
  }
}
new MutationObserver(clocks).observe(document.getElementById('main'), {childList: true, subtree: true, characterData: true});
clocks();

function live(text, kind) {
  const shown = document.getElementById('live');
  if (!shown || shown.textContent === text) return;
  shown.textContent = text;
  shown.className = 'live ' + kind;
}

document.addEventListener('click', event => {
  const command = event.target.closest('.command');
  if (!command || !navigator.clipboard || String(getSelection())) return;
  navigator.clipboard.writeText(command.textContent).then(() => {
    command.classList.add('copied');
    setTimeout(() => command.classList.remove('copied'), 1200);
  }, () => {});
});
