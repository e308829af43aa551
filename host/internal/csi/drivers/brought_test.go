package drivers

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/sdk/storage"
)

// bring lets a plugin tell its drivers, by id and endpoint.
func (h *host) bring(plugin string, idsAndEndpoints ...string) {
	h.t.Helper()
	var all []storage.Driver
	for n := 0; n < len(idsAndEndpoints); n += 2 {
		all = append(all, storage.Driver{ID: idsAndEndpoints[n], Endpoint: idsAndEndpoints[n+1]})
	}
	if err := h.Bring(h.t.Context(), plugin, all); err != nil {
		h.t.Fatal(err)
	}
}

// unused waits until the registry explains why drivers that a plugin brings are not used; no words: all are used.
func (h *host) unused(plugin string, words ...string) {
	h.t.Helper()
	deadline := time.After(time.Minute)
	for {
		changed := h.Changed()
		got := h.Unused(plugin)
		if slices.EqualFunc(got, words, strings.Contains) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			h.t.Fatalf("want %q, got %q", words, got)
		}
	}
}

func (h *host) from(id, plugin string, source Source) Driver {
	h.t.Helper()
	return h.wait(id, fmt.Sprintf("%s of %q", source, plugin), func(d Driver) bool {
		return d.Plugin == plugin && d.Source == source && !d.Retired
	})
}

// What a plugin brings is known under the next host before the plugin has told anything, and goes only when it is told
// no more and not in use.
func TestBroughtDrivers(t *testing.T) {
	dataDir := shortDir(t)
	socket := "unix://" + filepath.Join(dataDir, "b.sock")
	serve(t, strings.TrimPrefix(socket, "unix://"), &csiDriver{version: "1"})
	h := open(t, dataDir)
	h.bring("p", "a", socket, "b", "anything at all")
	h.healthy("a")
	if d := h.from("b", "p", SourcePlugin); d.Endpoint != "anything at all" || d.Type != TypeMonolith {
		t.Errorf("%+v", d)
	}
	if err := h.Deregister(t.Context(), "a", "", true); !errors.Is(err, ErrBrought) ||
		!strings.Contains(err.Error(), `"p"`) {
		t.Errorf("deregister: %v", err)
	}
	h.bring("p", "a", socket, "b", "elsewhere")
	h.wait("b", "elsewhere", func(d Driver) bool { return d.Endpoint == "elsewhere" })
	h.Close(false)

	h = open(t, dataDir)
	h.from("b", "p", SourcePlugin)
	h.healthy("a")
	h.setUsers(`workload "db"`)
	h.bring("p", "b", "elsewhere")
	h.wait("a", "kept", func(d Driver) bool {
		return d.Retired && d.Healthy && strings.Contains(d.Message, "does not bring it any more; it is kept because it is")
	})
	h.Close(false)

	h = newHost(t, dataDir) // the next one, to which the plugin tells the same
	h.setUsers(`workload "db"`)
	h.open()
	h.from("a", "p", SourcePlugin)
	h.bring("p", "b", "elsewhere")
	h.wait("a", "kept", func(d Driver) bool { return d.Retired })
	h.bring("p", "a", socket, "b", "elsewhere") // it is back
	h.from("a", "p", SourcePlugin)
	h.bring("p")
	h.setUsers()
	h.waitGone("a")
	h.waitGone("b")
	h.Close(false)
	if got := open(t, dataDir).List(); len(got) != 0 {
		t.Errorf("they are back: %+v", got)
	}
}

// A driver of the same id that an operator or another plugin has comes first, as long as it is there.
func TestBroughtDriverThatIsNotUsed(t *testing.T) {
	h := open(t, shortDir(t), Spec{ID: "declared", Endpoint: "/run/nowhere/declared.sock"})
	h.bring("p", "declared", "x", "mine", "x")
	h.unused("p", "csi_driver block")
	h.bring("q", "mine", "y")
	h.unused("q", `plugin "p" has brought it first`)
	h.mustHaveHappened("driver-unused", "driver-unused")
	if d, err := h.Get("declared"); err != nil || d.Source != SourceConfig {
		t.Errorf("%+v, %v", d, err)
	}

	h.setUsers(`workload "db"`)
	if _, err := h.Reload(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	h.unused("p", "is kept until it is not in use")
	h.setUsers()
	h.from("declared", "p", SourcePlugin)
	h.unused("p")
	if _, err := h.Register(t.Context(), registered("mine", "/run/nowhere/mine.sock")); err != nil {
		t.Fatal(err)
	}
	h.unused("p", "a driver is registered")
	if err := h.Deregister(t.Context(), "mine", "", false); err != nil {
		t.Fatal(err)
	}
	h.from("mine", "p", SourcePlugin)
	h.bring("p")
	h.from("mine", "q", SourcePlugin)
	h.waitGone("declared")
	h.bring("q")
	h.waitGone("mine") // first: the removal, then the events
	if _, err := h.Reload(t.Context(), []Spec{{ID: "mine", Endpoint: "/run/nowhere/mine.sock"}}); err != nil {
		t.Fatal(err)
	}
	h.bring("q", "mine", "y")
	h.unused("q", "csi_driver block")
}

func TestBroughtDriversAreBounded(t *testing.T) {
	h := open(t, shortDir(t))
	h.bring("p", "../x", "", "a", "", "a", "", "long", strings.Repeat("x", 1025), "bell", "\a",
		"fits", strings.Repeat("x", 1024))
	h.unused("p", `has the character`, "brought twice", "at most 1024", "control characters")
	if got := h.List(); len(got) != 2 || !strings.HasSuffix(got[0].Endpoint, "/csi/a/csi.sock") {
		t.Errorf("%+v", got)
	}
	var many []string
	for n := range 101 {
		many = append(many, fmt.Sprint("d", n), "")
	}
	h.bring("p", many...)
	h.unused("p", "after the first 100")
	h.waitGone("fits")
	h.from("d99", "p", SourcePlugin)
	if _, err := h.Get("d100"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}
