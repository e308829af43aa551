package browser

import (
	"errors"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/pannier/pannier/test/lib/check"
)

// What may be changed can be: each action asks first, and the page of its target shows what became of it.
func TestActions(t *testing.T) {
	t.Parallel()
	r := newRig(t, "actions = true")
	for _, id := range []string{"data", "spare"} {
		r.volume(id)
	}
	r.workload("db", "data")
	b := newBrowser(t)
	b.signIn(r, r.manager)

	b.open(r.url("/volumes/default/data"))
	b.follow("Take a snapshot")
	b.sees(".command", "pannier volume snapshot create data")
	b.press("Take a snapshot")
	b.live()
	b.sees("main table td", "ready")

	b.follow("Detach from a")
	b.sees(".command", "pannier volume detach data a")
	b.press("Detach")
	b.sees("main", "Nobody has it.")
	r.AwaitFree("data")
	r.workload("db", "data")

	b.open(r.url("/volumes/default/spare"))
	b.follow("Delete")
	b.do("type another name", chromedp.SendKeys("#typed", "data"))
	b.expect("400")
	b.press("Delete")
	b.sees("[role=alert]", "nothing was done")
	b.do("type the name", chromedp.SendKeys("#typed", "spare"))
	b.picture("confirm")
	b.press("Delete")
	b.until("the list is open", `location.pathname == "/volumes"`)
	b.live()
	if text := value[string](b, "document.querySelector('main').innerText"); r.Try("volume", "status", "spare").Code == 0 {
		t.Errorf("the volume is there: %s", text)
	}

	b.open(r.url("/nodes/a"))
	b.follow("Drain")
	b.press("Drain")
	b.sees("h1", "draining")
	r.AwaitFree("data")
	b.sees("main", "It holds no volume.")
	b.follow("End the drain")
	b.press("End the drain")
	b.until("the drain has ended", "!document.querySelector('h1').innerText.includes('draining')")

	b.open(r.url("/plugins/csi-bridge"))
	b.follow("Swap")
	b.expect("409")
	b.press("Swap in the file of the plugin directory")
	b.sees("[role=alert]", "runs already")
}

// Who may read is told what an action needs, and nothing is done.
func TestActionThatIsNotAllowed(t *testing.T) {
	t.Parallel()
	r := newRig(t, "actions = true")
	b := newBrowser(t)
	b.signIn(r, r.reader)
	b.open(r.url("/nodes/a"))
	b.follow("Drain")
	b.expect("403")
	b.press("Drain")
	b.sees("[role=alert]", "node")
	n := check.Must(r.Node("a"))(t)
	if n.GetNode().GetDrain() != nil {
		t.Errorf("the node is drained: %v", n)
	}
}

// follow clicks a link by its text.
func (b *browser) follow(text string) {
	b.t.Helper()
	find := fmt.Sprintf("[...document.querySelectorAll('main a')].find(e => e.innerText.trim() == %q)", text)
	b.until("there is a link "+text, find+" != null")
	was := value[string](b, "location.href")
	b.do("follow "+text, chromedp.Navigate(value[string](b, find+".href")), chromedp.WaitReady("main"))
	if value[string](b, "location.href") == was {
		b.t.Fatal(errors.New("the link " + text + " leads nowhere"))
	}
}

// press submits the page's form by its button, and waits for the page after it.
func (b *browser) press(text string) {
	b.t.Helper()
	before := value[float64](b, "performance.timeOrigin")
	find := fmt.Sprintf("[...document.querySelectorAll('main button')].find(e => e.innerText.trim() == %q)", text)
	b.until("there is a button "+text, find+" != null")
	b.eval(find + ".click()")
	b.until("the next page", fmt.Sprintf("performance.timeOrigin != %v && document.readyState == 'complete'", before))
}
