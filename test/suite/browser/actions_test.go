package browser

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testhost"
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
	b.sees(".stops li", "db")
	b.press("Detach")
	b.sees("main", "No workload uses this volume.")
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
	b.sees(".stops li", "db")
	b.press("Drain")
	b.sees("h1", "draining")
	r.AwaitFree("data")
	b.sees("main", "It holds no volume.")
	b.follow("End the drain")
	b.press("End the drain")
	b.until("the drain has ended", "!document.querySelector('h1').innerText.includes('draining')")

	b.open(r.url("/plugins/csi-bridge"))
	b.follow("Swap")
	b.press("Swap in the file of the plugin directory") // which serves already
	b.sees("#swaps", "None yet")
}

// A snapshot is offered where a controller of the driver can make one.
func TestDriverWithoutSnapshots(t *testing.T) {
	t.Parallel()
	r := newRig(t, "actions = true")
	d := faultydriver.Start(t, faultydriver.Config{
		Without: []string{"CREATE_DELETE_SNAPSHOT", "LIST_SNAPSHOTS", "VOLUME_ACCESSIBILITY_CONSTRAINTS"},
	})
	r.Run("driver", "register", "plain", "-endpoint", d.Endpoint())
	r.Eventually("the volume is created", func() error {
		_, err := r.Client().Volumes.CreateVolume(t.Context(), &hostv1.CreateVolumeRequest{Spec: &hostv1.VolumeSpec{
			Id: "plain", Type: "csi", PluginId: "plain", CapacityMin: 16 << 20,
			Capabilities: []*hostv1.VolumeCapability{{AccessMode: "single-node-writer", AttachmentMode: "file-system"}},
		}})
		return err
	})
	r.volume("data")
	b := newBrowser(t)
	b.signIn(r, r.manager)
	for volume, want := range map[string]string{"plain": "Delete", "data": "Take a snapshot, Delete"} {
		b.open(r.url("/volumes/default/" + volume))
		b.live()
		got := value[[]string](b, "[...document.querySelectorAll('.actions a')].map(a => a.innerText)")
		if strings.Join(got, ", ") != want {
			t.Errorf("volume %s has the buttons %q", volume, got)
		}
	}
}

// A plugin goes through a canary that ends, one that is promoted, a rollback and a swap, each by its button, and the
// page tells how many calls of each process failed.
func TestActionsOfPlugins(t *testing.T) {
	t.Parallel()
	r := newRig(t, "actions = true")
	r.volume("data")
	const plugin = "csi-bridge"
	file := filepath.Join(r.PluginDir, plugin)
	program := check.Must(os.ReadFile(file))(t)
	r.Run("plugin", "pin", plugin) // so that a new file waits
	check.NoError(t, testhost.WriteProgram(file+".new", append(program, "\n// another\n"...)))
	check.NoError(t, os.Rename(file+".new", file))
	b := newBrowser(t)
	b.signIn(r, r.manager)
	newest := func(texts ...string) {
		t.Helper()
		for _, text := range texts {
			b.sees("#swaps tbody tr:first-child", text)
		}
	}
	calls := func() {
		for range 20 {
			r.Run("volume", "status", "data")
		}
	}

	r.Run("plugin", "swap", "-canary", "50%", plugin)
	b.open(r.url("/plugins/" + plugin))
	b.live()
	b.sees("main", "50 % of the calls")
	b.follow("Roll back")
	b.sees(".command", "pannier plugin rollback "+plugin)
	b.press("Roll back")
	newest("canary 50 %", "by an operator")

	r.Run("plugin", "swap", "-canary", "50%", plugin)
	r.workload("db", "data")
	calls()
	b.follow("Promote the canary")
	b.press("Promote the canary")
	newest("swapped", "canary 50 %", "0 % of")
	if p := r.plugin(t, plugin); p.GetCanary() != nil || p.GetGeneration() < 3 {
		t.Errorf("promoted: %v", p)
	}

	r.Run("plugin", "unpin", plugin)
	b.follow("Roll back")
	b.press("Roll back")
	newest("rollback", "by an operator")
	b.follow("Swap")
	b.press("Swap in the file of the plugin directory")
	newest("swapped")
	if last := r.lastSwap(t, plugin); last.GetRollback() || last.GetError() != "" {
		t.Errorf("swapped: %v", last)
	}
	b.picture("plugin-swaps")
}

// plugin returns a plugin of the host.
func (r *rig) plugin(t *testing.T, name string) *hostv1.Plugin {
	t.Helper()
	all := check.Must(r.Client().Plugins.ListPlugins(t.Context(), &hostv1.ListPluginsRequest{}))(t)
	for _, p := range all.GetPlugins() {
		if p.GetName() == name {
			return p
		}
	}
	t.Fatalf("there is no plugin %q", name)
	return nil
}

func (r *rig) lastSwap(t *testing.T, name string) *hostv1.PluginSwap {
	t.Helper()
	swaps := r.plugin(t, name).GetSwaps()
	return swaps[len(swaps)-1]
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
	b.leave(find)
}

// press submits the page's form by its button, and waits for the page after it.
func (b *browser) press(text string) {
	b.t.Helper()
	find := fmt.Sprintf("[...document.querySelectorAll('main button')].find(e => e.innerText.trim() == %q)", text)
	b.until("there is a button "+text, find+" != null")
	b.leave(find)
}

// leave clicks what leads to another page with the mouse, and waits for that page.
func (b *browser) leave(element string) {
	b.t.Helper()
	before := value[float64](b, "performance.timeOrigin")
	b.click(element)
	b.until("the next page", fmt.Sprintf("performance.timeOrigin != %v && document.readyState == 'complete'", before))
}

// click clicks an element with the mouse.
func (b *browser) click(element string) {
	b.t.Helper()
	at := value[struct{ X, Y float64 }](b, fmt.Sprintf(`(() => {
		const e = %s;
		e.scrollIntoView({block: 'center', behavior: 'instant'});
		const box = e.getBoundingClientRect();
		return {X: box.x + box.width / 2, Y: box.y + box.height / 2};
	})()`, element))
	b.do("click "+element, chromedp.MouseClickXY(at.X, at.Y))
}
