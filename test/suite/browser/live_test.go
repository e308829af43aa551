package browser

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testhost"
)

// A page changes while it is open: a claim comes and goes, a plugin is swapped, the agent restarts.
func TestLive(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	r.volume("data")
	b := newBrowser(t)
	b.signIn(r, r.reader)
	b.open(r.url("/volumes/default/data"))
	b.live()
	b.sees("main", "No workload uses this volume.")
	opened := value[float64](b, "performance.timeOrigin")
	r.workload("db", "data")
	b.sees(".way", "db")
	b.sees(".track [aria-current]", "in use")
	b.sees(".usage .num", "%")
	r.Run("workload", "stop", "db")
	b.sees("main", "No workload uses this volume.")
	if value[float64](b, "performance.timeOrigin") != opened {
		t.Error("the page was loaded anew")
	}

	b.open(r.url("/plugins/web"))
	b.live()
	b.sees("main", "1, process")
	// The page goes on with the next process of the plugin that serves it.
	program := check.Must(os.ReadFile(filepath.Join(r.PluginDir, "web")))(t)
	check.NoError(t, testhost.WriteProgram(filepath.Join(r.PluginDir, "web.new"), append(program, "\n// another\n"...)))
	check.NoError(t, os.Rename(filepath.Join(r.PluginDir, "web.new"), filepath.Join(r.PluginDir, "web")))
	b.sees("main", "2, process")
	b.sees("main", "swapped")
	b.sees(".token", "reader")

	// Nor is the page lost while the agent restarts.
	r.Kill()
	r.Start()
	r.Run("plugin", "restart", "csi-bridge")
	b.expect("502")
	b.open(r.url("/plugins/csi-bridge"))
	b.live()
	b.sees("main", "restart")
}

// A token that is deleted ends at once: the page is not kept up to date, and the next one is the form.
func TestTokenThatEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	b := newBrowser(t)
	b.expect("401")
	b.open(r.url("/volumes"))
	b.sees("h1", "Sign in")
	b.enter("not-a-token")
	b.sees("[role=alert]", "No token has this secret")
	b.enter(r.reader)
	b.until("the page that was asked for", `location.pathname == "/volumes"`)
	b.live()
	b.sees("main", "No volumes yet.")
	accessor := r.accessor(t, "reader")
	r.Run("acl", "token", "delete", accessor)
	r.volume("data") // the next change is not shown
	b.sees("#live", "not live")
	b.open(r.url("/"))
	b.sees("h1", "Sign in")
}

// accessor returns the accessor of a token by its name.
func (r *rig) accessor(t *testing.T, name string) string {
	t.Helper()
	for line := range strings.Lines(r.Run("acl", "token", "list")) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == name {
			return fields[0]
		}
	}
	t.Fatalf("there is no token %q", name)
	return ""
}
