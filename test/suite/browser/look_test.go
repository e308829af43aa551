package browser

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// faint lists the texts of a page whose contrast with what is behind them is less than WCAG 2.2 asks for (1.4.3): 4.5,
// or 3 for large ones.
const faint = `(() => {
  const colour = text => {
    const n = text.match(/[\d.]+/g).map(Number);
    return {r: n[0], g: n[1], b: n[2], a: n.length > 3 ? n[3] : 1};
  };
  const over = (top, below) => ({
    r: top.r * top.a + below.r * (1 - top.a), g: top.g * top.a + below.g * (1 - top.a),
    b: top.b * top.a + below.b * (1 - top.a), a: 1,
  });
  const behind = e => {
    const c = colour(getComputedStyle(e).backgroundColor);
    if (c.a === 1) return c;
    return over(c, e.parentElement ? behind(e.parentElement) : {r: 255, g: 255, b: 255, a: 1});
  };
  const light = c => {
    const part = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(c.r) + 0.7152 * part(c.g) + 0.0722 * part(c.b);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; n = walker.nextNode();) {
    const e = n.parentElement, style = getComputedStyle(e);
    if (!n.data.trim() || !e.checkVisibility()) continue;
    const ground = behind(e), text = over(colour(style.color), ground);
    const [a, b] = [light(text), light(ground)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05), size = parseFloat(style.fontSize);
    const large = size >= 24 || size >= 18.66 && style.fontWeight >= 700;
    if (ratio < (large ? 3 : 4.5)) found.push(n.data.trim().slice(0, 40) + ': ' + ratio.toFixed(2));
  }
  return found;
})()`

// unnamed lists what a screen reader has no name for: fields, buttons, links and pictures (1.1.1, 4.1.2), and ids that
// are there twice (4.1.1).
const unnamed = `(() => {
  const found = [];
  for (const e of document.querySelectorAll('input:not([type=hidden]), select, button, a, svg[role=img], img')) {
    const name = e.getAttribute('aria-label') || e.getAttribute('alt') || e.innerText || e.labels?.[0]?.innerText;
    if (!name?.trim()) found.push(e.outerHTML.slice(0, 80));
  }
  for (const e of document.querySelectorAll('table')) {
    if (!e.getAttribute('aria-label')) found.push('a table: ' + e.innerText.slice(0, 40));
  }
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  found.push(...ids.filter((id, n) => ids.indexOf(id) !== n));
  if (document.querySelectorAll('h1').length !== 1) found.push('not one h1');
  if (!document.documentElement.lang || !document.title) found.push('no language, or no title');
  return found;
})()`

// cut lists what a page shows in part only: a table that is wider than its place, and a text that leaves its own. Of a
// long name the beginning may be cut, and the whole is its title.
const cut = `(() => {
  const found = [];
  for (const e of document.querySelectorAll('main .scroll')) {
    const name = e.querySelector('table').getAttribute('aria-label');
    if (e.scrollWidth > e.clientWidth) found.push(name + ': ' + e.scrollWidth + ' in ' + e.clientWidth);
  }
  for (const e of document.querySelectorAll('main *')) {
    const style = getComputedStyle(e);
    const named = e.localName === 'svg' || e.parentElement.title;
    if (style.overflowX === 'hidden' && e.scrollWidth > e.clientWidth && !named) {
      found.push(e.innerText.slice(0, 40));
    }
  }
  for (const e of document.querySelectorAll('.name')) {
    if (e.getClientRects().length > 2) found.push('a name in several lines: ' + e.title);
  }
  return found;
})()`

// looks checks what can be seen of a page: contrast in both schemes, names, and that a phone does not scroll sideways.
func (b *browser) looks() {
	b.t.Helper()
	for _, scheme := range []string{"dark", "light"} {
		b.scheme(scheme)
		if bad := value[[]string](b, faint); len(bad) > 0 {
			b.t.Errorf("too little contrast (%s): %q", scheme, bad)
		}
	}
	if bad := value[[]string](b, unnamed); len(bad) > 0 {
		b.t.Errorf("without a name: %q", bad)
	}
	for _, width := range widths {
		b.size(width, 900)
		if bad := value[[]string](b, cut); len(bad) > 0 {
			b.t.Errorf("%s: %d pixels wide, it is cut: %q", value[string](b, "location.pathname"), width, bad)
		}
	}
	b.size(390, 844)
	if wide := value[float64](b, "document.documentElement.scrollWidth - innerWidth"); wide > 0 {
		b.t.Errorf("on a phone the page is %v pixels too wide", wide)
	}
	if hidden := value[bool](b, "document.querySelector('nav [aria-current]')?.getBoundingClientRect().right > innerWidth"); hidden {
		b.t.Error("on a phone the menu does not show the page that is open")
	}
	b.size(1360, 900)
}

// shape checks that a list is a table on a desktop, and has a card for each row on a phone, and how it looks.
func (b *browser) shape(path string) {
	b.t.Helper()
	const display = "getComputedStyle(document.querySelector('main tbody tr')).display"
	if is := value[string](b, display); is != "table-row" {
		b.t.Errorf("%s: a row is displayed as %s on a desktop", path, is)
	}
	b.size(390, 844)
	if is := value[string](b, display); is != "flex" {
		b.t.Errorf("%s: a row is displayed as %s on a phone", path, is)
	}
	b.size(1360, 900)
	b.looks()
}

// Everything is reached by the keyboard, in the order of the page, and can be seen to be.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	r.volume("data")
	b := newBrowser(t)
	b.signIn(r, r.reader)
	b.open(r.url("/volumes"))
	b.live()
	var order []string
	for range 40 {
		b.do("Tab", chromedp.KeyEvent(kb.Tab))
		focus := value[struct {
			Text    string
			Visible bool
			End     bool
		}](b, `(() => {
			const e = document.activeElement, style = getComputedStyle(e);
			const visible = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
			return {text: e.name || e.innerText || '', visible, end: e === document.body};
		})()`)
		if focus.End {
			break
		}
		if !focus.Visible {
			t.Errorf("the focus on %q cannot be seen", focus.Text)
		}
		order = append(order, strings.TrimSpace(focus.Text))
	}
	for _, want := range []string{"Skip to the content", "Volumes", "Checks", "search", "state", "Filter", "data", "local"} {
		if !strings.Contains(fmt.Sprintf("%q", order), fmt.Sprintf("%q", want)) {
			t.Errorf("%q is not reached: %q", want, order)
		}
	}
	if len(order) == 0 || order[0] != "Skip to the content" {
		t.Errorf("the first is not the way to the content: %q", order)
	}
}
